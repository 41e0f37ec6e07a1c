"""Forks while other threads hold the GIL or wait for it. Parent and children hold the GIL, and print the times."""
import ctypes
import gc
import os
import threading
import time
import warnings

warnings.simplefilter("ignore")  # hides warnings about forks in a process with several threads
library = ctypes.PyDLL(os.environ["TEST_LIBRARY"])
is_over = False


def print_hold():
    times = (ctypes.c_int64 * 4)()
    library.hold(5_000, times)
    line = " ".join(map(str, ("hold", library.thread_number(), *times)))
    os.write(1, (line + "\n").encode())


def spin():
    while not is_over:
        time.sleep(0.0001)
        sum(range(1000))


threads = [threading.Thread(target=spin) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        gc.collect()
        for _ in range(3):
            print_hold()
        os._exit(0)
    print_hold()
    children.append(child)
for child in children:
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
is_over = True
for thread in threads:
    thread.join()
