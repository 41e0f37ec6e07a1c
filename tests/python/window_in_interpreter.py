"""Opens and closes a window in a sub-interpreter, in calls that keep the GIL."""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

WORK = """
try:
    import ctypes
except ImportError:
    print("no calls")
else:
    runtime = ctypes.PyDLL("libcudart.so.12")
    for _ in range(30):
        assert runtime.cudaDeviceSynchronize() == 0
    print("done")
"""

interpreters.run_string(interpreters.create(), WORK)
