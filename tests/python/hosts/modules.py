"""Prints everything by which a Python program could notice a library that runs code in the interpreter."""

import sys

# Before 3.10, removing the module atexit also removes its exit functions. So the library, which imports atexit, leaves
# the module in `sys.modules`. The list that is printed here does not include it.
print(sorted(set(sys.modules) - {"atexit"} if sys.version_info < (3, 10) else sys.modules))
print(sys.gettrace(), sys.getprofile(), getattr(sys, "monitoring", None) and [sys.monitoring.get_tool(n) for n in range(6)])
import threading

print(threading.active_count(), threading.current_thread().name, threading.main_thread().name)
import gc

print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.garbage))
import signal

print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGPROF)])
import builtins

print(sorted(vars(builtins)), len(sys.meta_path), len(sys.path_hooks), sys.excepthook, sys.unraisablehook)
