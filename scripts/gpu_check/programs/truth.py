"""mark(n): makes a mark at the start of the program's iteration n. mark(RESET): makes a mark at which the program's
count starts again.

If TRUTH_TIMES names a file, the file gets a JSON list with the time of each mark since the last RESET, in ns of
CLOCK_MONOTONIC."""
import atexit
import ctypes
import json
import os
import time

RESET = -1
_library = ctypes.CDLL(os.environ["TRUTH_LIBRARY"])
_library.mark.argtypes = [ctypes.c_long]
_library.mark.restype = None
_began = []


def mark(n):
    if n == RESET:
        _began.clear()
    else:
        _began.append(time.monotonic_ns())
    _library.mark(n)


@atexit.register
def _write():
    if "TRUTH_TIMES" in os.environ:
        with open(os.environ["TRUTH_TIMES"], "w") as log:
            json.dump(_began, log)
