"""fallback.py WAY: serves decode batches with vLLM's data structures. Every fifth step has a smaller batch and launches
its kernels one by one, so it takes longer. The other steps launch a CUDA graph, or no graph if WAY is `eager`."""

import ctypes
import sys
import time
from ctypes import c_size_t, c_void_p

from py_ctypes import Dim3, Runtime, check
from serving import Part, Request
from vllm.v1.worker.gpu_model_runner import Engine

STEPS, KERNELS = 42, 40
PROMPT = 5


class Loop(Runtime):
    def eager(self):
        one = Dim3(1, 1, 1)
        params = (c_void_p * 1)(ctypes.addressof(self.words))
        for _ in range(KERNELS):
            kernel = c_void_p(ctypes.addressof(one))
            check(self.lib.cudaLaunchKernel(kernel, one, one, params, c_size_t(0), self.stream))
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        check(self.lib.cudaStreamSynchronize(self.stream))


loop = Loop("libcudart.so.12")
loop.capture()
engine = Engine("0.33.0")
requests = [Request(f"r{place}", PROMPT, STEPS) for place in range(32)]
engine.step([Part(request, 0, PROMPT) for request in requests], loop.eager)
for request in requests:
    request.done = PROMPT
for step in range(1, STEPS):
    is_eager = step % 5 == 4
    size = 3 + step % 10 if is_eager else 16 * (1 + step % 2)
    work = loop.eager if is_eager or sys.argv[1] == "eager" else loop.step
    engine.step([Part(request, request.done, 1) for request in requests[:size]], work)
