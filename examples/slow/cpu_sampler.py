"""Suffers from a sampler that runs on the host, in Python: the GPU waits for its tokens.

    tllmprof run --window 5-24 --step cuStreamSynchronize --gc --gil -- python3 cpu_sampler.py
"""

import random

from gpu import Gpu

STEPS, KERNEL_NS, TOKENS = 30, 3_000_000, 200_000


def sample(randoms):
    best, token = 0.0, 0
    for place in range(TOKENS):
        if randoms[place] > best:
            best, token = randoms[place], place
    return token


gpu = Gpu()
randoms = [random.random() for _ in range(TOKENS)]
for step in range(STEPS):
    sample(randoms)
    gpu.launch(KERNEL_NS)
    gpu.wait()
