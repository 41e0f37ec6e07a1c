"""Runs steps for a while whenever asked to: `SECONDS` on standard input, `STEPS ELAPSED PROCESSOR` on standard output."""
import sys
import time


def serve(step):
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, steps = float(line), 0
        for _ in range(20):  # what a sleeping process has lost: caches, the GPU's attention
            step()
        used, began = time.process_time(), time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            for _ in range(20):
                step()
            steps += 20
        print(steps, elapsed, time.process_time() - used, flush=True)
