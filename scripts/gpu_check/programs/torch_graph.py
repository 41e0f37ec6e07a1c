"""A decode loop over one CUDA graph in torch. A step is a replay of the graph, one eager kernel, and a wait for the
stream.

   torch_graph.py STEPS [return | os._exit]
   torch_graph.py --blocks [--decode]

--decode: the graph has 17 more kernels of 36 000 clock cycles each, so that it takes as long as the decode step of a
small model. These kernels only count cycles, because the time of real layers differs by a percent from process to
process, depending on the addresses of their memory."""
import os
import sys

import torch

import blocks
from truth import mark

decode = "--decode" in sys.argv
x = torch.ones(4096, device="cuda")
total = torch.zeros(4096, device="cuda")


def work():
    for _ in range(17 if decode else 0):
        torch.cuda._sleep(36000)
    return (x * 2 + 1).relu()


side = torch.cuda.Stream()
with torch.cuda.stream(side):  # torch requires that the work has run once before it is captured
    y = work()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = work()
stream = torch.cuda.current_stream()
torch.cuda.synchronize()


def step(i=0):
    graph.replay()
    total.add_(y)
    mark(i)
    stream.synchronize()


def graph_us(times=50):
    """Returns the duration of one graph on the GPU, in µs."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(times + 1):
        if i == 1:  # the first replay is a warm-up, so the time is measured from the second
            begin.record()
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / times


if sys.argv[1] == "--blocks":
    print(f"graph {graph_us():.1f} us")
    blocks.serve(step)
else:
    for i in range(int(sys.argv[1])):
        step(i)
    print("torch_graph:", total.sum().item(), flush=True)
    if sys.argv[2:] == ["os._exit"]:
        os._exit(3)
