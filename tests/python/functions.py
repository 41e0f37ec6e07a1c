"""Calls functions of every kind, which end in every possible way, and prints their results."""
import asyncio
import inspect
import os
import pickle
import sys
import threading
import traceback
import warnings

from truth_of_calls import enters, leaves, lines, local, paused, ran, report

warnings.simplefilter("ignore")  # hides warnings about forks in a process with several threads


def plain(a, b=2, *more, c=3, **others):
    with ran("plain"):
        return a, b, more, c, others


class Some:
    def method(self, value):
        with ran("Some.method"):
            return value

    @staticmethod
    def static(value):
        with ran("Some.static"):
            return plain(value)

    @classmethod
    def of_class(cls, value):
        with ran("Some.of_class"):
            return cls.__name__, value


def recursive(n):
    with ran("recursive"):
        return 0 if n == 0 else 1 + recursive(n - 1)


def raises(n):
    with ran("raises"):
        if n == 0:
            raise KeyError("of ours")
        between(n - 1)


def between(n):
    raises(n)


def generator(n):
    with ran("generator"):
        got = []
        for i in range(n):
            try:
                with paused("generator"):
                    value = yield i
                got.append(value)
            except ValueError as error:
                got.append(str(error))
        return got


def delegates():
    with ran("delegates"):
        return (yield from within())


def within():
    enters("within")
    try:
        with paused("within", "delegates"):
            yield 1
        plain(1)
        with paused("within", "delegates"):
            yield 2
    finally:
        leaves("within")
    return 3


async def outer(n):
    with ran("outer"):
        return [await inner(i) for i in range(n)]


async def inner(i):
    with ran("inner"):
        await paused("inner", "outer")
        if i == 3:
            raise LookupError(i)
        return i


async def sleeps(seconds):
    with ran("sleeps"):
        await paused("sleeps")
        return seconds


async def asynchronous(n):
    with ran("asynchronous"):
        for i in range(n):
            await paused("asynchronous")
            with paused("asynchronous"):
                yield i


def forks():
    """Returns True in the child, where calls that are in progress belong to the parent."""
    enters("forks")
    child = os.fork()
    if child == 0:
        lines.clear()
        local.depth = 0
        plain(1)
        recursive(2)
        return True
    assert os.waitpid(child, 0)[1] == 0
    leaves("forks")
    return False


# Whenever a module is imported, the library looks for the functions that `TLLMPROF_PY_RANGES` names. So this import
# makes the library find the functions above.
import colorsys  # noqa: E402


def synchronous():
    print(plain(1), plain(1, 2, 3, c=4, d=5), plain(*range(5)))
    some = Some()
    print(some.method(1), Some.method(some, 2), Some.static(3), some.static(4), Some.of_class(5), some.of_class(6))
    print(list(map(plain, range(3))), sorted([3, 1, 2], key=some.method))
    print(recursive(5), recursive(400))
    for depth in range(4):
        try:
            between(depth)
        except KeyError:
            print(traceback.format_exc())
    assert pickle.loads(pickle.dumps(plain)) is plain
    print(inspect.signature(plain), plain.__code__.co_name, sys.getrefcount(plain))


def generators():
    print(list(generator(3)), list(generator(0)))
    thrown = generator(3)
    print(next(thrown), thrown.send("sent"), thrown.throw(ValueError("thrown")))
    try:
        next(thrown)
    except StopIteration as stop:
        print(stop.value)
    for kind in (KeyError, GeneratorExit):
        one = generator(3)
        next(one)
        try:
            one.throw(kind)
        except kind:
            print("left by", kind.__name__)
    closed = generator(3)
    next(closed)
    closed.close()
    abandoned = generator(3)
    next(abandoned)
    del abandoned
    generator(3).close()
    print(list(delegates()))
    interleaved = [generator(3) for _ in range(3)]
    print([next(one) for _ in range(3) for one in interleaved])
    del interleaved


async def asynchrony():
    print(await outer(3))
    try:
        await outer(5)
    except LookupError:
        print(traceback.format_exc())
    print(await asyncio.gather(*(sleeps(i) for i in range(5))))
    cancelled = asyncio.ensure_future(sleeps(9))
    await asyncio.sleep(0)
    cancelled.cancel()
    print(await asyncio.gather(cancelled, return_exceptions=True))
    print([i async for i in asynchronous(3)])
    async for i in asynchronous(3):
        break
    one = asynchronous(3)
    print(await one.__anext__())
    await one.aclose()
    one = asynchronous(3)
    print(await one.__anext__())
    try:
        await one.athrow(ValueError("thrown"))
    except ValueError as error:
        print(error)


def threads():
    def work():
        for i in range(200):
            plain(i)
            list(generator(2))
            recursive(3)
            try:
                raises(2)
            except KeyError:
                pass

    started = [threading.Thread(target=work) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def main():
    synchronous()
    generators()
    asyncio.run(asynchrony())
    threads()
    if forks():
        plain(2)
        report()
        os._exit(0)
    report()


main()
