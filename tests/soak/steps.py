"""steps.py TICKETS SECONDS: the steps of steps.c in 16 Python threads, with garbage collections, a function that is the
step, and a marked function."""
import ctypes
import gc
import itertools
import sys
import threading
import time

THREADS, LIFE = 16, 250
tickets, seconds = int(sys.argv[1]), float(sys.argv[2])
begin = time.monotonic()
taken = itertools.count()
late = 0.0  # seconds by which tickets become due later than planned
lateness = threading.Lock()
is_over = threading.Event()
plugin = ctypes.CDLL("plugin12.so")


class Options(ctypes.Structure):
    _fields_ = [("graphs", ctypes.c_int), ("kernels", ctypes.c_int), ("kernel", ctypes.c_int), ("sync", ctypes.c_int),
                ("copy_out", ctypes.c_bool), ("default_stream", ctypes.c_bool), ("capture_at", ctypes.c_int),
                ("capture_mode", ctypes.c_int), ("own_first", ctypes.c_int), ("own_last", ctypes.c_int)]


class Calls(ctypes.Structure):
    _fields_ = [("open", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Options))),
                ("step", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)),
                ("close", ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p))]


calls = Calls.in_dll(plugin, "plugin_loop")


def marked():
    ring = []
    ring.append(ring)


def step(loop, ticket):
    calls.step(loop, ticket)
    marked()
    if ticket % 100 == 0:
        gc.collect()


def wait_for(ticket):
    """Waits until the ticket is due. A ticket that is used late delays all later ones, as in pace.h."""
    global late
    planned, interval = begin + seconds * ticket / tickets, seconds / tickets
    while True:
        with lateness:
            wait = planned + late - time.monotonic()
            if wait <= 0:
                late += -wait if -wait > interval else 0
                return
        time.sleep(wait)


def live():
    options = Options(graphs=1, kernels=2, copy_out=True, capture_at=-1, capture_mode=2, own_first=-1, own_last=-1)
    loop = calls.open(ctypes.byref(options))
    for _ in range(LIFE):
        ticket = next(taken)
        if ticket >= tickets:
            is_over.set()
            break
        wait_for(ticket)
        step(loop, ticket)
    calls.close(loop)


def seat():
    while not is_over.is_set():
        thread = threading.Thread(target=live)
        thread.start()
        thread.join()


seats = [threading.Thread(target=seat) for _ in range(THREADS)]
for thread in seats:
    thread.start()
for thread in seats:
    thread.join()
