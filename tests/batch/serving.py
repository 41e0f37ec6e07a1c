"""Schedules requests like a server, and computes the true contents of each batch. engines/ has the batches in the data
structures of the engines."""

from collections import namedtuple

# A request's share of a batch: the request, the number of its tokens that earlier batches computed, and the number that
# this batch computes.
Part = namedtuple("Part", "request done tokens")


class Request:
    def __init__(self, name, prompt, answer):
        self.name, self.prompt, self.answer = name, prompt, answer
        self.done = 0

    @property
    def given(self):
        """The number of answer tokens that have been computed so far."""
        return max(0, self.done - self.prompt + 1)


class Serving:
    """Schedules requests, given as (step, prompt, answer), in batches of at most `budget` tokens."""

    def __init__(self, requests, budget):
        self.coming = [(step, Request(f"r{place}", prompt, answer))
                       for place, (step, prompt, answer) in enumerate(requests)]
        self.running, self.budget, self.step = [], budget, 0

    def batch(self):
        """Returns the `Part`s of the next batch; an empty list if there are no requests now, and None after the
        last one."""
        self.running = [request for request in self.running if request.given < request.answer]
        self.running += [request for step, request in self.coming if step <= self.step]
        self.coming = [(step, request) for step, request in self.coming if step > self.step]
        self.step += 1
        if not self.running:
            return [] if self.coming else None
        left, parts = self.budget, []
        for request in self.running:
            tokens = min(left, max(1, request.prompt - request.done))
            if tokens:
                parts.append(Part(request, request.done, tokens))
                left -= tokens
        return parts

    def did(self, parts):
        for part in parts:
            part.request.done += part.tokens


def truth(parts):
    prefill = sum(part.tokens for part in parts if part.done < part.request.prompt)
    tokens = sum(part.tokens for part in parts)
    decode = tokens - prefill
    phase = "mixed" if prefill and decode else "prefill" if prefill else "decode" if decode else "idle"
    return {"requests": len(parts), "tokens": tokens, "prefill_tokens": prefill, "decode_tokens": decode, "phase": phase}


# The requests of a run: (step at which the request arrives, tokens of its prompt, tokens of its answer). There are a
# prompt that fits into one step, a prompt that is split over several steps together with decodes, a prompt of one
# token, a request after a pause, and a thousand requests at once.
REQUESTS = [(0, 5, 4), (2, 20, 3), (3, 1, 3), (40, 7, 2)] + [(60, 1, 2)] * 1000
BUDGET = 8
