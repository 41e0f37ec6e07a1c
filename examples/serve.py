"""A serving loop in Python: each step launches a kernel and waits for it; now and then it collects garbage.

    tllmprof run --gc --gil -- python3 serve.py [STEPS]
"""

import gc
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "slow"))

from gpu import Gpu  # noqa: E402

KERNEL_NS, REQUESTS = 1_000_000, 30_000

gpu = Gpu()
# Objects that a garbage collection has to visit. They make a collection take longer.
cache = [{"request": n, "tokens": [n]} for n in range(REQUESTS)]
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 300):
    gpu.launch(KERNEL_NS)
    gpu.wait()
    if step % 20 == 0:
        gc.collect()
