"""Suffers from a Python function that sleeps: between the steps it waits for more requests, to make larger batches.

    tllmprof run --window 5-24 --step cuStreamSynchronize --gc --gil -- python3 python_sleep.py
"""

import time

from gpu import Gpu

STEPS, KERNEL_NS, WAITS = 30, 5_000_000, 0.008


def collect_requests():
    time.sleep(WAITS)


gpu = Gpu()
for step in range(STEPS):
    collect_requests()
    gpu.launch(KERNEL_NS)
    gpu.wait()
