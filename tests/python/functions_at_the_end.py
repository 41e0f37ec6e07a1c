"""Threads that are in marked functions when the interpreter ends."""
import os
import sys
import threading
import time


def spins(n):
    while n:
        n -= 1
        spins(0)


def generator():
    while True:
        yield 1


def endless():
    for _ in generator():
        spins(10)


def waits():
    time.sleep(1000)


class Last:
    """An object that is deleted while the interpreter ends. From then on, a thread that asks for the GIL is ended. The
    object waits until all threads but the sleeping one have ended, because CPython 3.10 can crash by itself if a thread
    asks for the GIL after the interpreter's memory was freed.
    """

    def __del__(self):
        # CPython 3.14 never ends such threads, so the wait has a limit. On a busy machine, other versions may need long.
        latest = time.monotonic() + (1 if sys.version_info >= (3, 14) else 60)
        while len(os.listdir("/proc/self/task")) > 2 and time.monotonic() < latest:
            time.sleep(0.001)


# Whenever a module is imported, the library looks for the functions that `TLLMPROF_PY_RANGES` names. So this import
# makes the library find the functions above.
import colorsys  # noqa: E402

# When the interpreter ends, it clears `sys.last_value` before all other names. This deletes the object, whose `__del__`
# then waits for the other threads to end.
sys.last_value = Last()
for target in (endless, endless, waits, endless):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.05)
print("ends")
