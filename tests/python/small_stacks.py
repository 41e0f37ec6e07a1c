"""In this program, threads with small stacks make the first calls that the library counts."""
import ctypes
import threading


def step():
    return runtime.cudaDeviceSynchronize()


def run():
    for _ in range(10):
        assert step() == 0


threading.stack_size(65536)
runtime = ctypes.CDLL("libcudart.so.12")
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
