"""Several ranks that call all-reduce forever. In step 50, rank 1 gets the given fault, so that all ranks hang.

    hang.py none | FAULT

FAULT is one of the names in FAULTS at the end, or the name of a collective fault in `step`.
"""
import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

FAULT_STEP = 50
HOST_FUNCTION = """
#include <unistd.h>
void wait_for_copy(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}
"""
# Faults after which the ranks also wait for each other on the host, because the GPU's work may end despite the fault.
ON_THE_HOST_TOO = ("size", "kind", "order")
fault = sys.argv[1]
rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
host_group = dist.new_group(backend="gloo") if fault in ON_THE_HOST_TOO else None
other_group = dist.new_group(backend="nccl") if fault == "groups" else None
x = torch.ones(1 << 20, dtype=torch.bfloat16, device=device)
y = torch.ones(8, dtype=torch.float32, device=device)
libc = ctypes.CDLL(None)
# A pthread_mutex_t of zeros, which for glibc is an unlocked mutex.
mutex = ctypes.create_string_buffer(64)
has_mutex = threading.Event()


def synchronize():
    torch.cuda.current_stream().synchronize()


def hold_up():
    time.sleep(3600)


def start(function):
    threading.Thread(target=function, daemon=True).start()


def hold_gil():
    ctypes.PyDLL(None).sleep(3600)


def start_gil_holder():
    start(hold_gil)


def keep_lock():
    """Makes the main thread wait for a lock of Python, whose holder is not known."""
    lock = threading.Lock()
    lock.acquire()
    wait_for_lock(lock)


def wait_for_lock(lock):
    lock.acquire()


def hold_mutex():
    libc.pthread_mutex_lock(mutex)
    has_mutex.set()
    libc.sleep(3600)


def take_mutex():
    start(hold_mutex)
    has_mutex.wait()
    libc.pthread_mutex_lock(mutex)


def hold_mutex_and_take_gil():
    libc.pthread_mutex_lock(mutex)
    has_mutex.set()
    libc.sleep(1)
    hold_up()


def take_mutex_with_gil():
    start(hold_mutex_and_take_gil)
    has_mutex.wait()
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def fill_queue():
    results = queue.Queue(4)
    while True:
        results.put(0)


def read_config():
    path = os.path.join(tempfile.mkdtemp(), "config")
    os.mkfifo(path)
    with open(path, "rb") as file:
        file.read()


def run_tool():
    subprocess.run(["sleep", "3600"], check=True)


def ask_peer():
    ours, theirs = socket.socketpair()
    ours.recv(1)
    theirs.close()


def host_function():
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "host.c"), os.path.join(folder, "libhost.so")
    with open(source, "w") as file:
        file.write(HOST_FUNCTION)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(library).wait_for_copy


def launch_host_function(function):
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(stream, function, None)


def wait_in_stream():
    launch_host_function(host_function())


def wait_in_graph():
    function, graph = host_function(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        x.add_(0)
        launch_host_function(function)
    graph.replay()


def never_end():
    for _ in range(100):
        torch.cuda._sleep(10**10)


def read_outside():
    """Reads an element that does not exist, so that the kernel fails, and with it the process."""
    y[torch.tensor([10**6], device=device)].sum().item()


FAULTS = {
    "sleep": hold_up,
    "lock": keep_lock,
    "mutex": take_mutex,
    "deadlock": take_mutex_with_gil,
    "gil": start_gil_holder,
    "queue": fill_queue,
    "read": read_config,
    "tool": run_tool,
    "socket": ask_peer,
    "host": wait_in_stream,
    "graph": wait_in_graph,
    "kernel": never_end,
    "assert": read_outside,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "ends": lambda: os._exit(1),
}


def pass_on(is_faulty):
    """Sends from rank 1 to rank 0. The faulty rank does not send."""
    if rank == 0:
        dist.recv(y, 1)
    elif is_faulty:
        hold_up()
    elif rank == 1:
        dist.send(y, 0)
    synchronize()


def in_two_groups(is_faulty):
    calls = [(x, None), (y, other_group)]
    for tensor, group in reversed(calls) if is_faulty else calls:
        dist.all_reduce(tensor, group=group)
        synchronize()


def step(number):
    is_faulty = rank == 1 and number == FAULT_STEP
    if is_faulty and fault in FAULTS:
        FAULTS[fault]()
    if fault == "keeps":
        pass_on(is_faulty)
    if fault == "groups":
        return in_two_groups(is_faulty)
    calls = [lambda: dist.all_reduce(x[: len(x) // 4] if is_faulty and fault == "size" else x), lambda: dist.broadcast(y, 0)]
    if is_faulty and fault == "order":
        calls.reverse()
    if is_faulty and fault == "kind":
        calls[0] = lambda: dist.reduce(x, 1)
    for call in calls:
        call()
        synchronize()
    if host_group:
        dist.barrier(host_group)


for number in range(10**9):
    step(number)
