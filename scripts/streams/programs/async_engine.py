"""async_engine.py eager | graph: an engine with asynchronous scheduling. It launches step N + 1 before it reads the
output of step N. A second thread waits for the event after each output."""
import queue
import random
import sys
import threading

import torch
from common import mark

WIDTH, LAYERS, VOCABULARY, STEPS = 256, 6, 4000, 240
SIZES = (4, 8, 16, 32)
graphs_on = sys.argv[1] == "graph"
weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.half) / 16 for _ in range(LAYERS)]
table = torch.randn(VOCABULARY, WIDTH, device="cuda", dtype=torch.half)
inputs = {size: torch.zeros(size, WIDTH, device="cuda", dtype=torch.half) for size in SIZES}


def layers(x):
    for weight in weights:
        x = torch.softmax(torch.relu(x @ weight) + x, -1) * x
    return x


def captured():
    graphs, pool = {}, None
    layers(inputs[SIZES[0]])
    torch.cuda.synchronize()
    for size in reversed(SIZES):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = layers(inputs[size])
        pool = pool or graph.pool()
        graphs[size] = graph, output
    return graphs


graphs = captured() if graphs_on else {}
copies = torch.cuda.Stream()
# The queue holds at most one step. So while the second thread waits for a step's output, the engine launches at most
# two more steps.
launched, read = queue.Queue(maxsize=1), []


def outputs():
    while (item := launched.get()) is not None:
        event, host, count = item
        event.synchronize()
        read.append(host[:count].tolist())


reader = threading.Thread(target=outputs)
reader.start()
hosts = [torch.zeros(SIZES[-1], dtype=torch.long).pin_memory() for _ in range(4)]
last = torch.zeros(SIZES[-1], dtype=torch.long, device="cuda")
running = 6
for step in range(STEPS):
    mark()
    running = min(max(running + random.choice((-2, 0, 0, 0, 0, 3)), 1), SIZES[-1])
    size = next(size for size in SIZES if size >= running)
    positions = torch.randint(0, VOCABULARY, (running,)).pin_memory().to("cuda", non_blocking=True)
    inputs[size][:running].copy_(table[last[:running]] + table[positions])
    if not graphs_on or random.random() < 0.05:  # as if the step contained a prompt, for which engines use no graph
        hidden = layers(inputs[size])
    else:
        graph, hidden = graphs[size]
        graph.replay()
    chosen = (hidden[:running] @ table.T).float().argmax(-1)
    last[:running].copy_(chosen)
    host = hosts[step % len(hosts)]
    copies.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copies):
        host[:running].copy_(chosen, non_blocking=True)
        event = torch.cuda.Event()
        event.record(copies)
    chosen.record_stream(copies)
    launched.put((event, host, running))
launched.put(None)
reader.join()
torch.cuda.synchronize()
print("async_engine", sys.argv[1], len(read))
