"""Suffers from Python's garbage collector: the server holds many objects, and collects in every third step.

    tllmprof run --window 5-24 --step cuStreamSynchronize --gc -- python3 gc_pauses.py
"""

import gc

from gpu import Gpu

STEPS, KERNEL_NS, REQUESTS = 30, 10_000_000, 300_000

gpu = Gpu()
# Objects that a garbage collection has to visit.
cache = [{"request": n, "tokens": [n]} for n in range(REQUESTS)]
for step in range(STEPS):
    gpu.launch(KERNEL_NS)
    gpu.wait()
    if step % 3 == 0:
        gc.collect()
