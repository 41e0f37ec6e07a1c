"""Run by scripts/bench in each Python: prints what a step of a fixed amount of Python takes, in CPU nanoseconds and in
nanoseconds, as JSON.

    stacks.py LIBRARY SECONDS    LIBRARY: a driver that does nothing
"""
import ctypes
import json
import sys
import time

driver = ctypes.CDLL(sys.argv[1])
SECONDS = float(sys.argv[2])


def work(depth):
    if depth:
        return work(depth - 1)
    total = 0
    for n in range(20_000):
        total = (total * 3 + n) & 0xffff
    return total


def step():
    """Computes for about a millisecond, in twenty nested calls."""
    return work(20)


driver.cuInit(0)
driver.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
step()
began, used, steps = time.perf_counter_ns(), time.thread_time_ns(), 0
while time.perf_counter_ns() - began < SECONDS * 1e9:
    step()
    steps += 1
json.dump({"cpu": (time.thread_time_ns() - used) / steps, "ns": (time.perf_counter_ns() - began) / steps}, sys.stdout)
