"""An example that suffers from a child process that makes batches too slowly: each step waits for the next batch in a
queue between the processes.

    tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- python3 input_process.py 80    # 80 steps
"""

import multiprocessing
import sys
import time

KERNEL_NS, MAKES = 3_000_000, 0.010
STEPS = int(sys.argv[1]) if sys.argv[1:] else 30


def make_batches(batches):
    for _ in range(STEPS):
        until, words = time.perf_counter() + MAKES, 0
        while time.perf_counter() < until:
            words += len("a prompt that is split into words".split())
        batches.put(words)


def take_batch():
    return batches.get()


context = multiprocessing.get_context("fork")
batches = context.Queue(maxsize=1)
loader = context.Process(target=make_batches, args=(batches,), daemon=True)
loader.start()

from gpu import Gpu  # CUDA begins after the fork

gpu = Gpu()
for step in range(STEPS):
    take_batch()
    gpu.launch(KERNEL_NS)
    gpu.wait()
loader.join()
