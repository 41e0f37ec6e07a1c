"""An example that suffers from the GIL: while a thread prepares requests in Python, the loop that drives the GPU
has to wait for the GIL after every call.

    tllmprof run --window 5-24 --step cuStreamSynchronize --gil -- python3 gil_contention.py
"""

import threading

from gpu import Gpu

STEPS, KERNEL_NS = 30, 5_000_000

gpu = Gpu()
is_over = threading.Event()


def prepare():
    while not is_over.is_set():
        sum(n * n for n in range(1000))


preparing = threading.Thread(target=prepare, name="tokenise")
preparing.start()
for step in range(STEPS):
    gpu.launch(KERNEL_NS)
    gpu.wait()
is_over.set()
preparing.join()
