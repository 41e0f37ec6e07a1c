"""Threads that are in marked functions when the interpreter ends."""
import threading
import time


def spins(n):
    while n:
        n -= 1
        spins(0)


def generator():
    while True:
        yield 1


def endless():
    for _ in generator():
        spins(10)


def waits():
    time.sleep(1000)


# Python looks for these when it imports: by now there are functions to be found.
import colorsys  # noqa: E402

for target in (endless, endless, waits, endless):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.05)
print("ends")
