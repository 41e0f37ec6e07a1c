"""mark(n): this program is in its iteration n; mark(RESET): a count that starts again starts here."""
import ctypes
import os

RESET = -1
_library = ctypes.CDLL(os.environ["TRUTH_LIBRARY"])
_library.mark.argtypes = [ctypes.c_long]
_library.mark.restype = None
mark = _library.mark
