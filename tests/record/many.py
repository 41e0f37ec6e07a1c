"""many.py THREADS STEPS WORK: many threads call `step` at once. Each thread makes STEPS calls, with WORK waits for the
device in each."""
import ctypes
import sys
import threading

runtime = ctypes.CDLL("libcudart.so.12")
threads, steps, work = map(int, sys.argv[1:])
start = threading.Barrier(threads)


def step():
    for _ in range(work):
        runtime.cudaDeviceSynchronize()


def run():
    start.wait()
    for _ in range(steps):
        step()


assert runtime.cudaDeviceSynchronize() == 0
# Python's threads switch at this interval. It is so short that they take turns within a step.
sys.setswitchinterval(1e-5)
all_threads = [threading.Thread(target=run) for _ in range(threads)]
for thread in all_threads:
    thread.start()
for thread in all_threads:
    thread.join()
