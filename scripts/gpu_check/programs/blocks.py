"""Runs steps for a time on request. A request is `SECONDS` on standard input, and the answer is `STEPS ELAPSED
PROCESSOR MEDIAN` on standard output, in seconds except for STEPS. MEDIAN is the median step.
"""
import statistics
import sys
import time


def serve(step):
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, took = float(line), []
        warm = time.perf_counter() + 0.02
        for _ in range(20):  # warms up the caches and the GPU's clocks after the sleep
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
