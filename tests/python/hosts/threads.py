"""Many threads that collect garbage and wait for the GIL."""

import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import truth

count = 0
lock = threading.Lock()


def work():
    global count
    for _ in range(20):
        truth.work(1)
        with lock:
            count += 1


for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(count)
truth.report()
