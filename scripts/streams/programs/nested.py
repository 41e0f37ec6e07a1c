"""nested.py VARIANT: loops whose steps consist of similar parts, and loops that never wait for the GPU. They are
difficult cases for the learner."""
import random
import sys
import time

import torch
from common import DEVICE, mark

WIDTH, VOCABULARY = 512, 4000
variant = sys.argv[1]
layers = [torch.nn.Linear(WIDTH, WIDTH).to(DEVICE).half() for _ in range(6)]
head = torch.nn.Linear(WIDTH, VOCABULARY).to(DEVICE).half()
table = torch.nn.Embedding(VOCABULARY, WIDTH).to(DEVICE).half()
kept = []


def block(x):
    for layer in layers[:3]:
        x = x + torch.nn.functional.gelu(layer(x))
    return x / x.norm(dim=-1, keepdim=True)


def bookkeeping(rounds):
    """Computes on the host without any CUDA call, like a scheduler."""
    kept[:] = [n * n for n in range(rounds)]


def items(parts, between):
    """Makes steps of `parts` equal parts with a wait after each. Only longer host work distinguishes the first part
    of a step."""
    x = torch.randn(8, WIDTH, device=DEVICE).half()
    for _ in range(400):
        mark()
        for _ in range(parts):
            x = block(x)
            kept.append(x.sum().item())
        bookkeeping(between)


def items_tail():
    """Makes steps of equal parts, the last of which ends with an additional kernel."""
    x = torch.randn(8, WIDTH, device=DEVICE).half()
    for _ in range(300):
        mark()
        for _ in range(12):
            x = block(x)
            kept.append(x.sum().item())
        kept.append(head(x).argmax(-1).tolist())


def graph_of(work):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def graph_parts():
    """Makes steps of ten replays of one graph, with a wait after each replay."""
    x = torch.randn(8, WIDTH, device=DEVICE).half()
    graph = graph_of(lambda: x.copy_(block(x)))
    for _ in range(400):
        mark()
        for _ in range(10):
            graph.replay()
            kept.append(x[0, 0].item())
        bookkeeping(300)


def requests(tokens):
    """Decodes requests that each have this number of tokens, with a graph replay per token. An iteration is a
    token."""
    token = torch.zeros(4, dtype=torch.long, device=DEVICE)

    def decode():
        token.copy_(head(block(table(token))).argmax(-1))

    graph = graph_of(decode)
    for _ in range(600 // tokens):
        mark()
        prompt = torch.randint(0, VOCABULARY, (4, 64)).to(DEVICE)
        token.copy_(head(block(table(prompt)).mean(1)).argmax(-1))
        kept.append(token.tolist())
        for _ in range(tokens - 1):
            mark()
            graph.replay()
            kept.append(token.tolist())
        bookkeeping(3000)


def tied(parts):
    """Makes steps on two streams that wait for each other's events. One stream prepares the next input while the
    other computes."""
    side, main = torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.empty(8, dtype=torch.long).pin_memory()
    made, used, read = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event()
    for n in range(600):
        mark()
        with torch.cuda.stream(side):
            side.wait_event(used)
            x = table(torch.randint(0, VOCABULARY, (8,), device=DEVICE))
            made.record()
        with torch.cuda.stream(main):
            main.wait_event(made)
            for _ in range(parts + (n % 9 == 0)):
                x = block(x)
            host.copy_(head(x).argmax(-1), non_blocking=True)
            used.record()
            read.record()
        read.synchronize()
        kept.append(int(host[0]))


def nowait():
    """Trains a model without reading anything back from the GPU, so the host never waits."""
    parameters = [p for layer in [*layers, head, table] for p in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, 1e-4)
    for n in range(250):
        mark()
        ids = torch.randint(0, VOCABULARY, (16,), device=DEVICE)
        loss = torch.nn.functional.cross_entropy(head(block(table(ids))).float(), ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if n % 50 == 49:
            time.sleep(0.05)
    torch.cuda.synchronize()


def passes(counts):
    """Denoises images. Each takes a number of passes (`counts`), and the host waits only after an image."""
    net = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(6))).to(DEVICE).half()
    decoder = torch.nn.Conv2d(64, 3, 3, padding=1).to(DEVICE).half()
    for each in counts:
        x = torch.randn(2, 64, 32, 32).half().to(DEVICE)
        for step in range(each):
            mark()
            noise = net(torch.cat([x, x])).chunk(2)
            x = x - 0.02 * (noise[0] + 7.5 * (noise[1] - noise[0]))
        kept.append(decoder(x).float().cpu())


def varying_free():
    """Decodes without graphs. The number of launches varies from step to step, and nothing is read back from the
    GPU."""
    token = torch.zeros(4, dtype=torch.long, device=DEVICE)
    for _ in range(400):
        mark()
        x = table(token)
        for _ in range(random.randrange(4, 13)):
            x = block(x)
        token = head(x).argmax(-1)


VARIANTS = {
    "items8": lambda: items(8, 200), "items5": lambda: items(5, 20), "items_tail": items_tail,
    "graph_parts": graph_parts, "requests16": lambda: requests(16), "requests40": lambda: requests(40),
    "tied": lambda: tied(1), "tied3": lambda: tied(3), "nowait": nowait, "passes20": lambda: passes([20] * 24),
    "passes8": lambda: passes([8] * 24), "uneven": lambda: passes([random.randrange(4, 25) for _ in range(30)]),
    "varying_free": varying_free,
}
if variant == "nowait":
    VARIANTS[variant]()
else:
    with torch.inference_mode():
        VARIANTS[variant]()
print("nested", variant, len(kept))
