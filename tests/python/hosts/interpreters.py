"""Uses sub-interpreters that collect garbage, one after the other and in separate threads."""

import os
import sys
import threading

folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, folder)
import truth

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

source = "import sys; sys.path.insert(0, %r); import truth; truth.work(); import os; os.write(1, b'in one\\n')" % folder
last = "import truth; truth.report_sub()"


def make(kind):
    """Makes a sub-interpreter that shares the GIL, or one with its own GIL, if the version supports that."""
    if sys.version_info < (3, 9):
        return interpreters.create()
    if sys.version_info < (3, 13):
        return interpreters.create(isolated=kind == "isolated")
    return interpreters.create(kind)


def use(kind):
    one = make(kind)
    for _ in range(3):
        interpreters.run_string(one, source)
    interpreters.run_string(one, last)
    interpreters.destroy(one)


truth.work()
for kind in ("isolated", "legacy"):
    use(kind)
for kind in ("isolated", "legacy"):
    if kind == "legacy" and sys.version_info < (3, 12):
        continue  # before Python 3.12, both kinds are the same
    threads = [threading.Thread(target=use, args=(kind,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
truth.report()
