"""edges.py LIBRARY END WAITS: ends in the way END after this number of waits, while native threads run Python code."""

import ctypes
import os
import sys
import threading
import time

library, end, waits = sys.argv[1:]
native = ctypes.CDLL(library)
if native.begin(8) != 0:
    sys.exit("no threads")


def spins():
    while True:
        pass


if end == "daemons":
    for _ in range(2):
        threading.Thread(target=spins, daemon=True).start()
while native.waited() < int(waits):
    time.sleep(0.0005)
print("ends", flush=True)
if end == "_exit":
    os._exit(3)
if end == "exit":
    sys.exit(4)
if end == "raises":
    raise SystemExit("5")
