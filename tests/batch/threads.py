"""Threads that run steps at the same time, each with its own batches."""

import threading

from mine import Batch, Runner
from py_ctypes import Runtime
from serving import Part, Request

loop = Runtime("libcudart.so.12")
loop.capture()
runner = Runner()


def serve(thread):
    for step in range(300):
        requests = 1 + (thread + step) % 4
        done = 0 if step % 5 == 0 else 8
        runner.step(Batch([Part(Request("", 8, 8), done, 1)] * requests), loop.step)


threads = [threading.Thread(target=serve, args=(thread,)) for thread in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
