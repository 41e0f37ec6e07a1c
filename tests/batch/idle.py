"""An engine like vLLM that has no requests for 60 ms before step 10. It waits for them in a function of the engine."""

import queue
import threading

from py_ctypes import Runtime
from serving import Serving
from vllm.v1.worker.gpu.model_runner import Engine
from vllm.v1.engine.core import EngineCoreProc


class Requests(queue.Queue):
    """A queue whose next request always comes a fixed time after the engine begins to wait, however busy the machine
    is."""

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
