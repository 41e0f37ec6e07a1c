"""Uses CUDA through ctypes, holds the GIL, collects garbage, and ends in the way that its argument
names."""
import ctypes
import gc
import os
import sys

runtime = ctypes.CDLL("libcudart.so.12")
assert runtime.cudaDeviceSynchronize() == 0
ctypes.PyDLL(os.environ["TEST_LIBRARY"]).hold(1_000, (ctypes.c_int64 * 4)())
gc.collect()
if sys.argv[1:] == ["at once"] or os.environ.get("LEAVE") == "at once":
    os._exit(0)
