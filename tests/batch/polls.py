"""An engine like SGLang that has no requests for 60 ms before step 10. It polls for requests all the time."""

import time

from py_ctypes import Runtime
from serving import Serving
from sglang.srt.managers.scheduler import Engine

loop = Runtime("libcudart.so.12")
loop.capture()
engine = Engine("")
serving = Serving([(0, 1, 30)], 8)
for number, parts in enumerate(iter(serving.batch, None)):
    if number == 10:
        # The first call is before the 60 ms begin, and the last one after they have ended.
        engine.scheduler.on_idle()
        until = time.monotonic() + 0.06
        while time.monotonic() < until:
            engine.scheduler.on_idle()
        engine.scheduler.on_idle()
    engine.step(parts, loop.step)
    serving.did(parts)
