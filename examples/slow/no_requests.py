"""An example without a fault: there are few requests, and between them the engine waits in its own function, like
vLLM, whose function has the same name.

    export TLLMPROF_PY_RANGES=__main__:EngineCoreProc._process_input_queue
    tllmprof run --window 5-24 --step cuStreamSynchronize -- python3 no_requests.py
"""

import queue
import threading
import time

from gpu import Gpu

STEPS, KERNEL_NS, PAUSE = 30, 5_000_000, 0.02


class EngineCoreProc:
    def __init__(self):
        self.input_queue = queue.Queue()

    def _process_input_queue(self):
        return self.input_queue.get()


def send(core):
    for _ in range(STEPS):
        time.sleep(PAUSE)
        core.input_queue.put("a request")


gpu, core = Gpu(), EngineCoreProc()
threading.Thread(target=send, args=[core], daemon=True).start()
for step in range(STEPS):
    core._process_input_queue()
    gpu.launch(KERNEL_NS)
    gpu.wait()
