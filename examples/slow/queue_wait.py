"""An example that suffers from a thread that makes batches too slowly: each step waits for the next batch in a
queue.

    tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- python3 queue_wait.py 80       # 80 steps
"""

import queue
import sys
import threading
import time

from gpu import Gpu

KERNEL_NS, MAKES = 5_000_000, 0.010
STEPS = int(sys.argv[1]) if sys.argv[1:] else 30


def make_batches():
    for batch in range(STEPS):
        time.sleep(MAKES)  # stands for a request to another process, which takes this long
        batches.put(batch)


def take_batch():
    return batches.get()


batches = queue.Queue()
gpu = Gpu()
threading.Thread(target=make_batches).start()
for step in range(STEPS):
    take_batch()
    gpu.launch(KERNEL_NS)
    gpu.wait()
