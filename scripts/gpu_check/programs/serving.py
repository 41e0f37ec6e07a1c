"""serving.py STEPS: the loop of an inference server. Another thread sends requests at any time, and the loop adds
them to the batch.

A step first takes a new request, if one is waiting and there is room, and computes its first token (an eager prefill
of its prompt). All other requests in the batch get their next token (a replay of the CUDA graph for their number).
Then the step reads the tokens, which is its only wait. Requests have all lengths, so no two steps are alike."""
import queue
import random
import sys
import threading
import time

import torch
import torch.nn.functional as F

from truth import RESET, mark

device = "cuda" if torch.cuda.is_available() else "cpu"
SLOTS, LENGTH, LAYERS, WIDTH, HEADS, WORDS = 8, 256, 4, 512, 8, 8000
BATCHES = (1, 2, 4, 8)
torch.manual_seed(0)
random.seed(0)


def on_device(numbers):
    """Copies numbers to the GPU from pinned memory, so that the host does not wait for the copy."""
    tensor = torch.tensor(numbers)
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor


def weight(*shape):
    return torch.randn(*shape, device=device, dtype=torch.half) * shape[-1] ** -0.5


class Model:
    def __init__(self):
        self.words = weight(WORDS, WIDTH)
        self.layers = [{"qkv": weight(3 * WIDTH, WIDTH), "out": weight(WIDTH, WIDTH), "up": weight(4 * WIDTH, WIDTH),
                        "down": weight(WIDTH, 4 * WIDTH)} for _ in range(LAYERS)]
        # The cache has one slot for each request. The additional last slot is for rows of a batch that have no
        # request.
        self.cache = torch.zeros(LAYERS, 2, SLOTS + 1, LENGTH, WIDTH, device=device, dtype=torch.half)
        self.places = torch.arange(LENGTH, device=device)

    def __call__(self, tokens, slots, places):
        """Returns the next token of each row. Shapes of tokens and places: (row, length); of slots: (row)."""
        x = self.words[tokens]
        rows, length = tokens.shape
        seen = self.places[None, None, None, :] <= places[:, None, :, None]

        def heads(y):
            return y.view(rows, -1, HEADS, WIDTH // HEADS).transpose(1, 2)

        for layer, cache in zip(self.layers, self.cache):
            q, k, v = F.linear(F.layer_norm(x, (WIDTH,)), layer["qkv"]).chunk(3, -1)
            cache[0, slots[:, None], places] = k
            cache[1, slots[:, None], places] = v
            attended = F.scaled_dot_product_attention(heads(q), heads(cache[0, slots]), heads(cache[1, slots]), seen)
            x = x + F.linear(attended.transpose(1, 2).reshape(rows, length, WIDTH), layer["out"])
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (WIDTH,)), layer["up"])), layer["down"])
        return F.linear(F.layer_norm(x[:, -1], (WIDTH,)), self.words).argmax(-1)


class Decode:
    """The decode step of a batch of one size, captured in a CUDA graph."""

    def __init__(self, model, size):
        self.tokens = torch.zeros(size, 1, dtype=torch.long, device=device)
        self.slots = torch.full((size,), SLOTS, dtype=torch.long, device=device)
        self.places = torch.zeros(size, 1, dtype=torch.long, device=device)

        def work():
            return model(self.tokens, self.slots, self.places)

        self.replay = lambda: setattr(self, "next", work())
        if device == "cuda":
            side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):
                work()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self.next = work()
            self.replay = graph.replay

    def __call__(self, rows):
        rows = rows + [(0, SLOTS, 0)] * (len(self.slots) - len(rows))
        tokens, slots, places = on_device(rows).T
        self.tokens.copy_(tokens[:, None])
        self.slots.copy_(slots)
        self.places.copy_(places[:, None])
        self.replay()
        return self.next


class Request:
    def __init__(self):
        self.prompt = [random.randrange(WORDS) for _ in range(random.randint(4, 120))]
        self.left = random.randint(3, 100)
        self.slot = self.token = None
        self.place = len(self.prompt)


def ask(waiting, ends):
    while not ends.is_set():
        waiting.put(Request())
        time.sleep(random.expovariate(1 / 0.02))
        while waiting.qsize() > 4 and not ends.is_set():
            time.sleep(0.001)


def main(steps):
    model = Model()
    with torch.inference_mode():
        model(torch.zeros(1, 8, dtype=torch.long, device=device), torch.tensor([SLOTS], device=device),
              torch.arange(8, device=device)[None])
        decodes = {size: Decode(model, size) for size in BATCHES}
        waiting, ends = queue.Queue(), threading.Event()
        asking = threading.Thread(target=ask, args=(waiting, ends))
        asking.start()
        running, free, made, total = [], list(range(SLOTS)), 0, 0
        mark(RESET)
        while made < steps:
            if not running and waiting.empty():
                time.sleep(0.0005)
                continue
            mark(made)
            made += 1
            results = []
            batch = list(running)
            if free and not waiting.empty():
                new = waiting.get()
                new.slot = free.pop()
                results.append(model(on_device([new.prompt]), torch.full((1,), new.slot, device=device),
                                     torch.arange(len(new.prompt), device=device)[None]))
                running.append(new)
            if batch:
                size = min(size for size in BATCHES if size >= len(batch))
                results.append(decodes[size]([(one.token, one.slot, one.place) for one in batch])[:len(batch)])
                for one in batch:
                    one.place += 1
            tokens = torch.cat(results).tolist()  # the only wait for the GPU in a step
            for one, token in zip(([running[-1]] if len(running) > len(batch) else []) + batch, tokens):
                one.token, one.left = token, one.left - 1
                total += token
            for one in [one for one in running if one.left == 0 or one.place == LENGTH - 1]:
                running.remove(one)
                free.append(one.slot)
        ends.set()
        asking.join()
    print("serving:", total)


main(int(sys.argv[1]))
