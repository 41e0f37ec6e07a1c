"""An example that suffers from a Python function that sleeps: between the steps it waits for more requests, to make
larger batches.

    tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- python3 python_sleep.py 80       # 80 steps
"""

import sys
import time

from gpu import Gpu

KERNEL_NS, WAITS = 5_000_000, 0.008
STEPS = int(sys.argv[1]) if sys.argv[1:] else 30


def collect_requests():
    time.sleep(WAITS)


gpu = Gpu()
for step in range(STEPS):
    collect_requests()
    gpu.launch(KERNEL_NS)
    gpu.wait()
