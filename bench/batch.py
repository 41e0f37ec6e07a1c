"""Run by scripts/bench in each Python: prints CPU nanoseconds for a step of a batch, as JSON.

    batch.py LIBRARY TURNS REQUESTS    LIBRARY: a driver that does nothing
"""
import ctypes
import json
import sys
import time

driver = ctypes.CDLL(sys.argv[1])
TURNS, REQUESTS, STEPS = int(sys.argv[2]), int(sys.argv[3]), 10_000


class Request:
    def __init__(self, prompt):
        self.prompt = prompt


class Batch:
    def __init__(self, requests):
        self.requests, self.total = requests, len(requests)
        # The same data as in a batch of vLLM: the ids of its requests, and the number of tokens of
        # each request, once as a list and once as a dictionary by id.
        self.ids = [f"request-{number}" for number in range(len(requests))]
        self.given, self.tokens = [1] * len(requests), dict.fromkeys(self.ids, 1)


class Runner:
    def step(self, batch):
        """A step. The library reads the batch's contents from its argument."""


runner, batch = Runner(), Batch([Request(0) for _ in range(REQUESTS)])


def spell():
    since = time.thread_time_ns()
    for _ in range(STEPS):
        runner.step(batch)
    return (time.thread_time_ns() - since) / STEPS


driver.cuInit(0)
driver.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
spell()
json.dump(min(spell() for _ in range(TURNS)), sys.stdout)
