from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, List


class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()


@dataclass
class ScheduleBatch:
    reqs: List[Any]
    forward_mode: ForwardMode = None
    extend_num_tokens: int = None
    decoding_reqs: List[Any] = None


class Scheduler:
    def run_batch(self, batch: ScheduleBatch, pp_proxy_tensors=None):
        """Runs a batch."""

    def on_idle(self):
        """Called instead of run_batch if there are no requests."""


class Engine:
    """The stand-in for SGLang. If `way` is mlp-sync, decode batches have the forward mode of prefills."""

    runs_idle = True

    def __init__(self, way):
        self.way, self.scheduler = way, Scheduler()

    def step(self, parts, work):
        decodes = [part for part in parts if part.done >= part.request.prompt]
        batch = ScheduleBatch(parts)
        batch.extend_num_tokens = sum(part.tokens for part in parts)
        if not parts:
            batch.forward_mode = ForwardMode.IDLE
        elif not decodes:
            batch.forward_mode = ForwardMode.EXTEND
        elif len(decodes) < len(parts):
            batch.forward_mode, batch.decoding_reqs = ForwardMode.MIXED, decodes
        elif self.way == "mlp-sync":
            batch.forward_mode, batch.decoding_reqs = ForwardMode.EXTEND, parts
        else:
            # Like in the engine, a decode batch still has the old values of the prefill batch that
            # it was made from.
            batch.forward_mode, batch.extend_num_tokens = ForwardMode.DECODE, 12345
        self.scheduler.run_batch(batch)
        work()
