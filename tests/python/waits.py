"""A thread waits for the GIL while another thread holds it. Prints between which times each wait
was."""
import ctypes
import os
import threading
import time

library = ctypes.PyDLL(os.environ["TEST_LIBRARY"])
is_over = False
lines = []


def keeps():
    while not is_over:
        library.keep(20_000)
        time.sleep(0.001)


def waits():
    global is_over
    times = (ctypes.c_int64 * 2)()
    for _ in range(20):
        library.wait_for_keeper(times)
        lines.append(("wait", library.thread_number(), *times))
    is_over = True


threads = [threading.Thread(target=keeps), threading.Thread(target=waits)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for line in lines:
    print(*line)
