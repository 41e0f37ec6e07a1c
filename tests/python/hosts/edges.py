"""edges.py LIBRARY END MILLISECONDS: ends while native threads run into Python."""

import ctypes
import os
import sys
import threading
import time

library, end, milliseconds = sys.argv[1:]
begin = ctypes.CDLL(library).begin
if begin(8) != 0:
    sys.exit("no threads")


def spins():
    while True:
        pass


if end == "daemons":
    for _ in range(2):
        threading.Thread(target=spins, daemon=True).start()
time.sleep(int(milliseconds) / 1000)
print("ends", flush=True)
if end == "_exit":
    os._exit(3)
if end == "exit":
    sys.exit(4)
if end == "raises":
    raise SystemExit("5")
