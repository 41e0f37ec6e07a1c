"""Several ranks that call an all-reduce in each step. From step 10 on, rank 1 is late for it, for the given reason.

    arrivals.py STEPS none | sleep | gc | kernels | tokens  graph | eager

With CUSTOM=vllm, vLLM's own all-reduce is used, else NCCL's.
"""
import contextlib
import gc
import os
import sys
import time

import torch
import torch.distributed as dist

LATE_S = 0.005
TOKENS, CYCLES = 16, 150_000
# Clock cycles for which the GPU is kept busy before each of a step's four all-reduces. A step then takes 2 ms. In a
# much shorter step, the delay of a launch that is late by chance would be a large share of the step's time.
BETWEEN = 1_000_000
steps, cause, way = int(sys.argv[1]), *sys.argv[2:4]
rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
x = torch.ones(1 << 16, device=device)
if os.environ.get("CUSTOM") == "vllm":
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    reducer = CustomAllreduce(dist.new_group(backend="gloo"), device)
    if reducer.disabled:
        sys.exit("vLLM's all-reduce is disabled here")
    reduce, capturing = reducer.custom_all_reduce, reducer.capture
else:
    reducer, reduce, capturing = None, dist.all_reduce, contextlib.nullcontext


def work():
    for _ in range(4):
        torch.cuda._sleep(BETWEEN)
        reduce(x)


def step(requests, tokens):
    if rank == 1 and n >= 10:
        if cause == "sleep":
            time.sleep(LATE_S)
        elif cause == "gc":
            gc.collect()
        elif cause == "kernels":
            torch.cuda._sleep(10_000_000)
        elif cause == "tokens":
            torch.cuda._sleep((tokens - TOKENS) * CYCLES)
    run()
    torch.cuda.current_stream().synchronize()


side = torch.cuda.Stream()
# the ranks must be connected by a first all-reduce, because NCCL cannot connect them in a capture
with torch.cuda.stream(side):
    work()
torch.cuda.synchronize()
graph, run = None, work
if way == "graph":
    graph = torch.cuda.CUDAGraph()
    with capturing(), torch.cuda.graph(graph):
        work()
    run = graph.replay
gc.collect()
gc.disable()
# With this number of objects, one garbage collection takes about as long as the sleep of the
# planted cause `sleep`.
garbage = [[n] for n in range(400_000)] if cause == "gc" and rank == 1 else []
for n in range(steps):
    step(1, 4 * TOKENS if cause == "tokens" and rank == 1 and n >= 10 else TOKENS)
# The graph is deleted, because NCCL's shutdown waits until no graph uses its communicators.
del garbage, graph
run = None
if reducer:
    dist.barrier()
    reducer.close()
dist.destroy_process_group()
