"""Two ranks that all-reduce in a CUDA graph; in each step from 10 on rank 1 comes late, as is asked for.

    arrivals.py STEPS none | sleep | gc | kernels
"""
import gc
import os
import sys
import time

import torch
import torch.distributed as dist

LATE_S = 0.005
steps, cause = int(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
x = torch.ones(1 << 16, device=device)


def work():
    for _ in range(4):
        torch.cuda._sleep(100_000)
        dist.all_reduce(x)


side = torch.cuda.Stream()
with torch.cuda.stream(side):  # NCCL makes its connections before the capture
    work()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    work()
gc.collect()
gc.disable()
# What a collection goes through takes about as long as the sleep.
garbage = [[n] for n in range(400_000)] if cause == "gc" and rank == 1 else []
for n in range(steps):
    if rank == 1 and n >= 10:
        if cause == "sleep":
            time.sleep(LATE_S)
        elif cause == "gc":
            gc.collect()
        elif cause == "kernels":
            torch.cuda._sleep(10_000_000)
    graph.replay()
    torch.cuda.current_stream().synchronize()
# NCCL waits for the graphs that use it.
del garbage, graph
dist.destroy_process_group()
