"""Run by scripts/bench in each Python: prints CPU nanoseconds for a step of a batch of 16 requests, as JSON.

    batch.py LIBRARY TURNS    LIBRARY: a driver that does nothing
"""
import ctypes
import json
import sys
import time

driver = ctypes.CDLL(sys.argv[1])
TURNS, STEPS = int(sys.argv[2]), 10_000


class Request:
    def __init__(self, prompt):
        self.prompt = prompt


class Batch:
    def __init__(self, requests):
        self.requests, self.total = requests, len(requests)


class Runner:
    def step(self, batch):
        """What the formulas read the batch of."""


runner, batch = Runner(), Batch([Request(0) for _ in range(16)])


def spell():
    since = time.thread_time_ns()
    for _ in range(STEPS):
        runner.step(batch)
    return (time.thread_time_ns() - since) / STEPS


driver.cuInit(0)
driver.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
spell()
json.dump(min(spell() for _ in range(TURNS)), sys.stdout)
