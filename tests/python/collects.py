"""Makes garbage collections of every generation between two times without collections, and prints what gc reports."""
import gc
import time

gc.disable()
before = gc.get_stats()
print("from", time.monotonic_ns())

try:
    from _testcapi import with_tp_del  # objects with a legacy finaliser are uncollectable
except ImportError:
    with_tp_del = None

if with_tp_del:

    @with_tp_del
    class Stays:
        def __tp_del__(self):
            pass


def cycle(kind=list):
    made = kind()
    if kind is list:
        made.append(made)
    else:
        made.itself = made


gc.enable()
for _ in range(30000):
    cycle()
for generation in (0, 1, 2, 2, 1):
    for _ in range(10):
        cycle()
    if with_tp_del:
        cycle(Stays)
    gc.collect(generation)
gc.disable()
print("to", time.monotonic_ns())
for was, now in zip(before, gc.get_stats()):
    print("stats", *(now[key] - was[key] for key in ("collections", "collected", "uncollectable")))
