"""The arguments that vLLM passes to its workers, with the data structures of three versions. `Way`
is one of the versions."""

from dataclasses import dataclass
from typing import Any, Dict, List


@dataclass
class NewRequestData:
    req_id: str
    num_computed_tokens: int

    @property
    def prompt_len(self):
        raise AssertionError("a property was read")


@dataclass
class CachedRequestData:
    req_ids: List[str]
    num_computed_tokens: List[int]
    num_output_tokens: List[int]


@dataclass
class WithoutOutputs:
    req_ids: List[str]
    num_computed_tokens: List[int]


@dataclass
class OneCached:
    req_id: str
    num_computed_tokens: int


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: List[NewRequestData]
    scheduled_cached_reqs: Any
    num_scheduled_tokens: Dict[str, int]
    total_num_scheduled_tokens: int


class CachedRequestState:
    def __init__(self, part):
        self.num_prompt_tokens = part.request.prompt


class Scheduler:
    def __init__(self, way):
        self.way, self.requests = way, {}

    def schedule(self, parts):
        old = [part for part in parts if part.request.name in self.requests]
        new = [part for part in parts if part.request.name not in self.requests]
        self.requests.update((part.request.name, CachedRequestState(part)) for part in new)
        names, done = [part.request.name for part in old], [part.done for part in old]
        if self.way == "0.33.0":
            cached = CachedRequestData(names, done, [part.request.given for part in old])
        elif self.way == "0.10.0":
            cached = WithoutOutputs(names, done)
        else:
            cached = [OneCached(*one) for one in zip(names, done)]
        tokens = {part.request.name: part.tokens for part in parts}
        new = [NewRequestData(part.request.name, part.done) for part in new]
        return SchedulerOutput(new, cached, tokens, sum(tokens.values()))
