"""Sub-interpreters with their own GILs, each busy in a separate thread."""
import os
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

count = int(os.environ["INTERPRETERS"])
work = "import time\nfor _ in range(20):\n    sum(range(2000)); time.sleep(0.001)\n"
made = [interpreters.create() for _ in range(count)]


def run(interpreter):
    interpreters.run_string(interpreter, work)


for first in range(0, count, 8):
    threads = [threading.Thread(target=run, args=(one,)) for one in made[first : first + 8]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
for interpreter in made:
    interpreters.destroy(interpreter)
