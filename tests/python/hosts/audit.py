"""A program with Python audit hooks. The first hook rejects the installation of other hooks."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import threading
import truth

seen = []


def hook(event, args):
    seen.append(event)
    if event == "sys.addaudithook":
        raise RuntimeError("no hooks here")


sys.addaudithook(hook)
sys.addaudithook(print)  # the first hook raises RuntimeError, so Python silently does not add this one
truth.work()
thread = threading.Thread(target=truth.work)
thread.start()
thread.join()
exec("import colorsys")
truth.report()
print(*seen, sep="\n")
