"""Makes a million calls of marked functions, which must not leak anything."""
import gc
import sys


def plain(a):
    return a


def raises():
    raise KeyError


def generator():
    yield 1


async def coroutine():
    return 1


class Some:
    def method(self):
        return self


# Whenever a module is imported, the library looks for the functions that `TLLMPROF_PY_RANGES` names. So this import
# makes the library find the functions above.
import colorsys  # noqa: E402


def rounds(count):
    some = Some()
    for _ in range(count):
        plain(1)
        some.method()
        for _ in generator():
            pass
        try:
            raises()
        except KeyError:
            pass
        try:
            coroutine().send(None)
        except StopIteration:
            pass


rounds(1000)
gc.collect()
references = getattr(sys, "gettotalrefcount", lambda: 0)
before = sys.getallocatedblocks(), references()
rounds(200_000)
gc.collect()
after = sys.getallocatedblocks(), references()
print("calls", 5 * 201_000)
print("blocks", abs(after[0] - before[0]))
print("references", abs(after[1] - before[1]))
