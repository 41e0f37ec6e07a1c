"""Run by scripts/bench in each Python: prints CPU nanoseconds for one of each thing that is measured, as JSON.

    python.py LIBRARY TURNS    LIBRARY: tests/python/gil.c, built
"""
import ctypes
import gc
import json
import sys
import time

library = ctypes.PyDLL(sys.argv[1])
TURNS = int(sys.argv[2])


def nothing():
    pass


def step():
    """The function that the rule names as the step if all features are on."""


def call_step(count):
    for _ in range(count):
        step()


def hand_off(count):
    library.hand_off(count)


def collect(count):
    for _ in range(count):
        gc.collect(0)


def loop(count):
    total = 0
    for number in range(count):
        nothing()
        total += number % 7
        if number & 1:
            total ^= number
    return total


def per_turn(act):
    """Returns the CPU time of one turn in ns: the minimum of several measurements of about 20 ms each."""
    since = time.thread_time_ns()
    act(100)
    count = max(20, 100 * 20_000_000 // (time.thread_time_ns() - since))
    times = []
    for _ in range(TURNS):
        since = time.thread_time_ns()
        act(count)
        times.append((time.thread_time_ns() - since) / count)
    return min(times)


gc.disable()
print(json.dumps({"handoff": per_turn(hand_off), "collection": per_turn(collect), "marked": per_turn(call_step),
                  "loop": per_turn(loop)}))
