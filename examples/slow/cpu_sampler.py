"""An example that suffers from a sampler that runs on the host, in Python: the GPU waits for the sampler's tokens.

    tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- python3 cpu_sampler.py 80       # 80 steps
"""

import random
import sys

from gpu import Gpu

KERNEL_NS, TOKENS = 3_000_000, 200_000
STEPS = int(sys.argv[1]) if sys.argv[1:] else 30


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
