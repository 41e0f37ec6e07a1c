"""program.py SITUATION [--steps N]: makes steps whose functions take known shares of the processor time.

A step is a cudaDeviceSynchronize. The shares are of processor time instead of elapsed time, so a busy machine does not
change them.
"""
import asyncio
import ctypes
import os
import sys
import threading
import time

runtime = ctypes.CDLL("libcudart.so.12")
assert runtime.cudaSetDevice(0) == 0
steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 2000


def spin(share):
    until = time.thread_time() + share * 1e-4
    while time.thread_time() < until:
        pass


def seventy():
    spin(7)


def twenty():
    spin(2)


def ten():
    spin(1)


def synchronize():
    assert runtime.cudaDeviceSynchronize() == 0


def step():
    seventy()
    twenty()
    ten()
    synchronize()


def shares():
    for _ in range(steps):
        step()


async def inner(act):
    act()


async def middle(act):
    await inner(act)


async def engine():
    for _ in range(steps):
        await middle(seventy)
        await middle(twenty)
        await asyncio.gather(middle(ten), asyncio.sleep(0))
        synchronize()


def coroutines():
    asyncio.run(engine())


def down(depth):
    if depth:
        down(depth - 1)
    else:
        step()


def deep():
    for _ in range(steps):
        down(800)


def threads():
    """While two threads make steps, other threads are busy, start, and end."""
    ends = threading.Event()

    def busy():
        while not ends.is_set():
            sum(range(1000))

    def idle():
        ends.wait()

    def short():
        while not ends.is_set():
            thread = threading.Thread(target=idle, args=())
            ends.wait(0.001)
            thread.start()

    others = [threading.Thread(target=act) for act in (busy, idle, idle, short)]
    second = threading.Thread(target=second_steps)
    for thread in others + [second]:
        thread.start()
    print("threads", threading.get_native_id(), second.native_id, flush=True)
    for _ in range(steps):
        step()
    second.join()
    ends.set()
    for thread in others:
        thread.join()


def second_steps():
    for _ in range(steps // 4):
        ten()
        synchronize()


def fork():
    for n in range(steps):
        step()
        if n % 50 == 25:
            child = os.fork()
            if child == 0:
                files = [os.path.realpath("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")]
                assert not any(file.endswith("/stat") for file in files)
                tasks = os.listdir("/proc/self/task")
                assert len(tasks) == 1, tasks
                for _ in range(50):
                    ten()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0


def churn():
    """Creates and destroys frames, code and threads all the time."""

    def generate(depth):
        if depth:
            yield from generate(depth - 1)
        yield depth

    for n in range(steps):
        names = {}
        exec("def made_%d():\n    return [n for n in (lambda: range(20))()]" % n, names)
        names["made_%d" % n]()
        sum(generate(20))
        thread = threading.Thread(target=sum, args=(range(100),))
        thread.start()
        thread.join()
        synchronize()


def at_once():
    shares()
    os._exit(0)


def raises():
    """Ends the interpreter while another thread is making steps."""
    threading.Thread(target=second_steps_for_ever, daemon=True).start()
    shares()
    sys.exit(3)


def second_steps_for_ever():
    while True:
        synchronize()


def sleeps():
    for _ in range(steps):
        time.sleep(0.002)
        synchronize()


def event_loop():
    """While a thread makes steps without a wait, the main thread waits in an event loop, and runs a callback at times."""
    ends = threading.Event()

    def makes_steps():
        for _ in range(steps):
            ten()
            synchronize()
        ends.set()

    async def serves():
        while not ends.is_set():
            spin(500)
            await asyncio.sleep(0.05)

    thread = threading.Thread(target=makes_steps)
    thread.start()
    print("loop", threading.get_native_id(), flush=True)
    asyncio.run(serves())
    thread.join()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
