"""An example that suffers from a thread that makes batches too slowly, as it is busy: each step waits for the next batch
in a queue.

    tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- python3 input_thread.py 80     # 80 steps
"""

import hashlib
import queue
import sys
import threading
import time

from gpu import Gpu

KERNEL_NS, MAKES = 3_000_000, 0.015
STEPS = int(sys.argv[1]) if sys.argv[1:] else 30


def tokenise(prompt, until):
    while time.perf_counter() < until:
        tokens = hashlib.sha256(prompt).digest()  # stands for native code that releases the GIL
    return tokens


def make_batches():
    for _ in range(STEPS):
        batches.put(tokenise(bytes(1 << 20), time.perf_counter() + MAKES))


def take_batch():
    return batches.get()


batches = queue.Queue(maxsize=1)
gpu = Gpu()
threading.Thread(target=make_batches, name="loader").start()
for step in range(STEPS):
    take_batch()
    gpu.launch(KERNEL_NS)
    gpu.wait()
