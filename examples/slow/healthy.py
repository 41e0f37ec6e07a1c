"""A healthy Python loop: it has the next step ready before the GPU has done the current one.

    tllmprof run --window 5-24 --step cuStreamSynchronize --gc --gil -- python3 healthy.py
"""

from gpu import Gpu

STEPS, KERNELS, KERNEL_NS = 30, 5, 4_000_000

gpu = Gpu()
for step in range(STEPS):
    for kernel in range(KERNELS):
        gpu.launch(KERNEL_NS)
    gpu.wait()
