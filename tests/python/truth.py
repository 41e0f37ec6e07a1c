"""Writes a program's own data about its garbage collections to the file TRUTH, as a line for the test to compare."""

import gc
import os
import sys


def collections():
    return [generation["collections"] for generation in gc.get_stats()]


# For each generation, the number of garbage collections that the library need not have recorded in this process:
# those while the interpreter started and, in a forked child, those of the parent process.
begun = collections()


def begins():
    global begun
    begun = collections()


os.register_at_fork(after_in_child=begins)


def report():
    """Writes the collections of this interpreter by generation: until begins(), and in all. From here on, only
    requested collections happen."""
    gc.disable()
    line = "%d %s\n" % (os.getpid(), " ".join(map(str, begun + collections())))
    file = os.open(os.environ["TRUTH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, line.encode())
    os.close(file)


def report_sub():
    """Like report(), for a sub-interpreter. In 3.8, its collections count for the whole process. In 3.9, its
    collections have no notifications."""
    if sys.version_info >= (3, 10):
        report()


def work(times=3):
    """Makes garbage and collects it."""
    for generation in range(3):
        for _ in range(times):
            ring = []
            ring.append(ring)
            del ring
            gc.collect(generation)
