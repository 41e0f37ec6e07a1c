"""Lets a program run steps when it is asked to. A request is a line `SECONDS` on standard input. The program then
runs steps for this time and prints a line `STEPS ELAPSED PROCESSOR MEDIAN`: the number of steps, their duration,
their processor time and the median step, all in seconds except for STEPS."""
import statistics
import sys
import time


def serve(step):
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, took = float(line), []
        warm = time.perf_counter() + 0.02
        # the first steps after the sleep are not measured, because they warm up the caches and
        # raise the GPU's clocks
        for _ in range(20):
            step()
            if time.perf_counter() > warm:
                break
        used, began = time.process_time(), time.perf_counter()
        ended = began
        while ended - began < seconds:
            before = ended
            step()
            ended = time.perf_counter()
            took.append(ended - before)
        used = time.process_time() - used
        print(len(took), ended - began, used, statistics.median(took), flush=True)
