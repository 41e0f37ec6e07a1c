"""Several ranks that call all-reduce forever. In step 50, rank 1 gets the given fault, so that all ranks hang.

    hang.py none | sleep | killed | stopped | gil | kernel
"""
import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

FAULT_STEP = 50
fault = sys.argv[1]
rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
x = torch.ones(1 << 20, dtype=torch.bfloat16, device=device)


def hold_up():
    time.sleep(3600)


def hold_gil():
    ctypes.PyDLL(None).sleep(3600)


def fail():
    if fault == "sleep":
        hold_up()
    elif fault in ("killed", "stopped"):
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fault])
    elif fault == "gil":
        threading.Thread(target=hold_gil, daemon=True).start()
    elif fault == "kernel":
        for _ in range(100):
            torch.cuda._sleep(10**10)


def step(number):
    if rank == 1 and number == FAULT_STEP:
        fail()
    dist.all_reduce(x)
    torch.cuda.current_stream().synchronize()


for number in range(10**9):
    step(number)
