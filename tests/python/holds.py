"""Holds the GIL for 50 ms several times, and prints between which times each hold began and
ended."""
import ctypes
import os

library = ctypes.PyDLL(os.environ["TEST_LIBRARY"])
times = (ctypes.c_int64 * 4)()
for _ in range(int(os.environ.get("HOLDS", "20"))):
    library.hold(50_000, times)
    print("hold", library.thread_number(), *times)
