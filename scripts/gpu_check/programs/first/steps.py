"""Defines the steps of the programs in Python: how long a program runs, and the list of its steps that it prints.
The programs contain no code for a profiler."""
import json
import os
import sys
import time

PROGRAMS, BEGAN = {}, []


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def begin_step(*_):
    BEGAN.append(time.monotonic_ns())


def seconds():
    return float(os.environ.get("SECONDS_EACH", 8))


def until_the_end():
    """Yields until the program's time is over. Begins no steps."""
    end = time.monotonic() + seconds()
    while time.monotonic() < end:
        yield


def steps():
    """Yields until the program's time is over. Each yield begins a step."""
    for _ in until_the_end():
        begin_step()
        yield


def main():
    if sys.argv[1:] and sys.argv[1] in PROGRAMS:
        PROGRAMS[sys.argv[1]]()
        print(json.dumps({"pid": os.getpid(), "began": BEGAN}), flush=True)
        return
    sys.exit("\n".join(PROGRAMS))
