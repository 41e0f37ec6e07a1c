"""An example that suffers from Python's garbage collector: the program holds many objects and runs a collection in
every third step.

    tllmprof run --window 5-24 --step cuStreamSynchronize --gc -- python3 gc_pauses.py
"""

import gc

from gpu import Gpu

STEPS, KERNEL_NS, REQUESTS = 30, 10_000_000, 300_000

gpu = Gpu()
# Objects that a garbage collection has to visit. They make a collection take longer.
cache = [{"request": n, "tokens": [n]} for n in range(REQUESTS)]
for step in range(STEPS):
    gpu.launch(KERNEL_NS)
    gpu.wait()
    if step % 3 == 0:
        gc.collect()
