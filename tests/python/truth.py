"""What a program knows of its own collections, for the test to compare: a line in the file TRUTH."""

import gc
import os
import sys


def collections():
    return [generation["collections"] for generation in gc.get_stats()]


# Earlier collections happened while the interpreter started, or in a parent process.
begun = collections()


def begins():
    global begun
    begun = collections()


os.register_at_fork(after_in_child=begins)


def report():
    """The collections of this interpreter, by generation: before, and by now. No more come but asked for."""
    gc.disable()
    line = "%d %s\n" % (os.getpid(), " ".join(map(str, begun + collections())))
    file = os.open(os.environ["TRUTH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, line.encode())
    os.close(file)


def report_sub():
    """For a sub-interpreter: in 3.8 its collections are among all of the process, in 3.9 nobody is notified of them."""
    if sys.version_info >= (3, 10):
        report()


def work(times=3):
    """Makes garbage, and has it collected."""
    for generation in range(3):
        for _ in range(times):
            ring = []
            ring.append(ring)
            del ring
            gc.collect(generation)
