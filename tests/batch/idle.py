"""An engine of vLLM's shape that has no request before step 10, for 60 ms: where it waits is the engine's own function."""

import queue
import threading

from py_ctypes import Runtime
from serving import Serving
from vllm.v1.worker.gpu.model_runner import Engine
from vllm.v1.engine.core import EngineCoreProc


class Requests(queue.Queue):
    """The next request comes so long after it is waited for, however busy the machine is."""

    def get(self):
        if self.empty():
            threading.Timer(0.06, self.put, [None]).start()
        return super().get()


loop = Runtime("libcudart.so.12")
loop.capture()
engine = Engine("0.33.0")
requests = Requests()
core = EngineCoreProc(requests)
serving = Serving([(0, 1, 30)], 8)
for number, parts in enumerate(iter(serving.batch, None)):
    if number != 10:
        requests.put(None)
    core._process_input_queue()
    engine.step(parts, loop.step)
    serving.did(parts)
