"""Has batches that are far larger than the others: each tenth step takes a whole prompt, and the requests that are being
decoded wait for it.

    tllmprof run --window 5-44 --step cuStreamSynchronize --batch '__main__:step=requests:requests,tokens:tokens,prefill_tokens:prompt' \\
        -- python3 large_batch.py
"""

from gpu import Gpu

STEPS, KERNEL_NS, REQUESTS, PROMPT, KERNELS = 50, 2_000_000, 8, 800, 20

gpu = Gpu()


def step(requests, tokens, prompt):
    for kernel in range(KERNELS if prompt else 1):
        gpu.launch(KERNEL_NS)
    gpu.wait()


for number in range(STEPS):
    prompt = PROMPT if number % 10 == 7 else 0
    step(REQUESTS, REQUESTS + prompt, prompt)
