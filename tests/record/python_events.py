"""Makes garbage collections, calls of marked functions, and GIL holds and waits in a window of a record. Prints between
which times each was, by the monotonic clock:
    gc THREAD GENERATION COLLECTED FROM TO
    function THREAD FROM TO
    hold THREAD FROM TO FROM TO        taken between the first two times, dropped between the others
    wait THREAD FROM TO
"""
import ctypes
import gc
import os
import threading
import time

runtime = ctypes.CDLL("libcudart.so.12")
library = ctypes.PyDLL(os.environ["TEST_LIBRARY"])
now = time.monotonic_ns
thread = library.thread_number()
print("begun", now())


def marked():
    time.sleep(0.001)
    return now()


def cycle():
    made = []
    made.append(made)


gc.disable()
gc.collect()
marked()
# After two waits, the window is open.
for _ in range(2):
    assert runtime.cudaDeviceSynchronize() == 0
for generation in (0, 1, 2, 2, 0):
    for _ in range(100):
        cycle()
    since = now()
    collected = gc.collect(generation)
    print("gc", thread, generation, collected, since, now())
for _ in range(20):
    since = now()
    marked()
    print("function", thread, since, now())
times = (ctypes.c_int64 * 4)()
for _ in range(5):
    library.hold(5_000, times)
    print("hold", thread, *times)
done = []


def keep():
    while not done:
        library.keep(10_000)
        time.sleep(0.002)


other = threading.Thread(target=keep)
other.start()
for _ in range(10):
    library.wait_for_it(3_000, times)
    print("wait", thread, times[0], times[1])
done.append(True)
other.join()
