"""Makes calls nested deeper than a C stack allows if each call uses some of it, and marked calls around them."""
import sys
import threading


def marked(n):
    return n


# Whenever a module is imported, the library looks for the functions that `TLLMPROF_PY_RANGES` names. So this import
# makes the library find the functions above.
import colorsys  # noqa: E402


def nested(n):
    return 0 if n == 0 else 1 + nested(n - 1)


def work(n):
    marked(1)
    print(nested(n))
    marked(2)


# From 3.11 on, calls between Python functions use no C stack, so they can nest much deeper.
depth = 100_000 if sys.version_info >= (3, 11) else 900
sys.setrecursionlimit(2 * depth)
work(depth)
threading.stack_size(256 * 1024)
thread = threading.Thread(target=work, args=(depth // 10,))
thread.start()
thread.join()
