"""Threads that want the GIL all the time. Each gives the GIL up only when the interpreter forces it to."""
import atexit
import threading
import time

end = time.monotonic() + 0.6


def spin():
    while time.monotonic() < end:
        sum(range(1000))


threads = [threading.Thread(target=spin) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
atexit.register(lambda: print("exit", time.monotonic_ns(), flush=True))
