"""Prints where the interpreter's calls of condition variables (pthread_cond_…) lead: to the shim or to libc."""
import ctypes
import os

led = ctypes.PyDLL(os.environ["SLOTS_LIBRARY"]).is_led
for name in ("init", "signal", "timedwait", "wait", "destroy"):
    print("led", led(b"pthread_cond_" + name.encode()))
