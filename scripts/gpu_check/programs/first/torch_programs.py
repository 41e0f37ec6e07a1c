"""torch_programs.py NAME: inference loops in PyTorch. Each NAME is slow for one reason, or for none (programs.txt)."""
import asyncio
import collections
import gc
import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch._dynamo
from torch import nn

from steps import begin_step, main, program, steps, until_the_end

DEVICE, HIDDEN, LAYERS, TOKENS, VOCABULARY = "cuda", 4096, 24, 2048, 32000
torch.set_grad_enabled(False)


def dense(layers=None, hidden=None):
    """Returns a model whose layers each keep the GPU busy for about 0.15 ms, if its input has TOKENS tokens."""
    layers, hidden = layers or LAYERS, hidden or HIDDEN
    with torch.device(DEVICE):
        blocks = [nn.Sequential(nn.Linear(hidden, hidden, bias=False), nn.GELU()) for _ in range(layers)]
        return nn.Sequential(*blocks).to(torch.bfloat16).eval()


def batch(tokens=None, hidden=None):
    return torch.randn(tokens or TOKENS, hidden or HIDDEN, device=DEVICE, dtype=torch.bfloat16)


def sampled(output):
    """Returns a step's tokens on the host, so it waits for the GPU."""
    return output[:64].argmax(-1).tolist()


def capture(net, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = net(x)
    return graph, output


def some_text(words):
    chosen = random.Random(1)
    return " ".join("".join(chosen.choices("etaoinshrdlu", k=chosen.randint(2, 9))) for _ in range(words))


# ---- programs that are slow because of sleeps, locks or other threads


def poll_scheduler():
    time.sleep(0.006)


@program
def polling():
    net, x = dense(), batch()
    for _ in steps():
        poll_scheduler()
        sampled(net(x))


METRICS, METRICS_LOCK = collections.Counter(), threading.Lock()


def flush_metrics():
    while True:
        with METRICS_LOCK:
            time.sleep(0.008)  # stands for a request that sends the statistics to another host
        time.sleep(0.001)


def record_metrics(tokens):
    with METRICS_LOCK:
        METRICS["tokens"] += len(tokens)


@program
def metrics_lock():
    net, x = dense(), batch()
    threading.Thread(target=flush_metrics, daemon=True).start()
    for _ in steps():
        record_metrics(sampled(net(x)))


def tokenise_uploads():
    text = some_text(200)
    while True:
        [hash(word) % VOCABULARY for word in text.split()]


@program
def upload_thread():
    """Runs steps while another Python thread computes all the time and so needs the GIL."""
    net, x = dense(), batch()
    sampled(net(x))
    graph, output = capture(net, x)
    threading.Thread(target=tokenise_uploads, name="tokenise_uploads", daemon=True).start()
    for _ in steps():
        graph.replay()
        sampled(output)


# ---- programs that wait for their own threads and child processes, which prepare batches


def load_batches(batches):
    while True:
        time.sleep(0.015)  # stands for a slow disk
        batches.put("a batch")


def decode_batches(batches):
    image = bytes(1 << 20)
    while True:
        until = time.perf_counter() + 0.015
        while time.perf_counter() < until:
            decoded = hashlib.sha256(image).digest()  # stands for native code that releases the GIL
        batches.put(decoded)


def steps_with(batches):
    net, x = dense(), batch()
    for _ in until_the_end():
        batches.get()
        begin_step()
        sampled(net(x))


@program
def loader_thread():
    batches = queue.Queue(maxsize=1)
    threading.Thread(target=load_batches, args=[batches], daemon=True).start()
    steps_with(batches)


@program
def decoder_thread():
    batches = queue.Queue(maxsize=1)
    threading.Thread(target=decode_batches, args=[batches], daemon=True).start()
    steps_with(batches)


@program
def decoder_process():
    context = multiprocessing.get_context("fork")
    batches = context.Queue(maxsize=1)
    context.Process(target=decode_batches, args=[batches], daemon=True).start()
    steps_with(batches)


# ---- programs that wait for work, which is not a fault


@program
def asyncio_requests():
    """Serves one client, which pauses for 15 ms before each request. The model runs in a separate thread."""
    net, x = dense(), batch()
    pool = ThreadPoolExecutor(1)

    def forward():
        begin_step()
        with torch.inference_mode():
            return sampled(net(x))

    async def client(requests):
        for _ in until_the_end():
            await asyncio.sleep(0.015)
            done = asyncio.get_running_loop().create_future()
            await requests.put(done)
            await done
        await requests.put(None)

    async def server():
        requests = asyncio.Queue()
        sending = asyncio.create_task(client(requests))
        while (done := await requests.get()) is not None:
            done.set_result(await asyncio.get_running_loop().run_in_executor(pool, forward))
        await sending

    asyncio.run(server())


# ---- programs that are slow because of busy functions on the host


def render_templates(conversations):
    rendered = []
    for conversation in conversations:
        rendered.append(json.dumps(json.loads(json.dumps(conversation)), indent=1))
    return rendered


@program
def json_templates():
    net, x = dense(), batch()
    messages = [{"role": "user", "content": some_text(60), "tokens": list(range(60))} for _ in range(12)]
    for _ in steps():
        render_templates([messages] * 16)
        sampled(net(x))


BANNED = re.compile(r"(\b\w*(?:rude|sour|tall)\w*\b)\s+(\w+)\s+\1", re.I)


def filter_banned_words(texts):
    return [BANNED.sub("***", text) for text in texts]


@program
def word_filter():
    net, x = dense(), batch()
    texts = [some_text(250) for _ in range(48)]
    for _ in steps():
        filter_banned_words(texts)
        sampled(net(x))


def refill_batch(sequences, length):
    rows = []
    for sequence in sequences:
        row = [token for token in sequence if token != 0]
        row += [0] * (length - len(row))
        rows.append([(token * 31 + place) % VOCABULARY for place, token in enumerate(row)])
    return torch.tensor(rows)


@program
def refilling():
    net, x = dense(), batch()
    sequences = [[n % 97 for n in range(1000)] for _ in range(32)]
    for _ in steps():
        ids = refill_batch(sequences, 1024).to(DEVICE)
        sampled(net(x) + ids.sum())


def apply_penalties(rows, seen):
    chosen = []
    for scores in rows:
        for token in seen:
            scores[token] = scores[token] / 1.1 if scores[token] > 0 else scores[token] * 1.1
        chosen.append(max(range(len(scores)), key=scores.__getitem__))
    return chosen


@program
def penalties():
    net, x = dense(), batch()
    seen = random.Random(2).sample(range(HIDDEN), min(400, HIDDEN))
    for _ in steps():
        apply_penalties(net(x)[:24].float().tolist(), seen)


# ---- programs that need a plan or a compilation for each new shape


def attend(query, keys, values):
    return nn.functional.scaled_dot_product_attention(query, keys, values)


@program
def growing_cache():
    """Calls attention with another length of the cache in each step. By default, PyTorch may choose cuDNN, which
    makes a plan for each new length."""
    net = dense(4)
    keys, values = (torch.randn(4, 32, 4096, HIDDEN // 32, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    x = batch(4).view(4, 1, HIDDEN)
    for _, length in zip(steps(), itertools.count(200)):
        for block in net:
            query = block(x).view(4, 1, 32, -1).transpose(1, 2)
            x = attend(query, keys[:, :, :length], values[:, :, :length]).transpose(1, 2).reshape(4, 1, HIDDEN)
        sampled(x[:, 0])


@program
def recompiles():
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 20
    net, x = dense(4), batch()
    compiled = torch.compile(net, dynamic=False, backend="aot_eager")
    for _, length in zip(steps(), itertools.count(64)):
        sampled(compiled(x[:length]))


@program
def recaptures():
    """Captures another graph in every 40th step, because the batch size changes."""
    net, x = dense(), batch()
    sampled(net(x))
    for _, step in zip(steps(), itertools.count()):
        if step % 40 == 0:
            graph, output = capture(net, x[:TOKENS - 8 * (step // 40 % 16)])
        graph.replay()
        sampled(output)


# ---- programs that are slow because of waits, copies or allocations within a step


def route_tokens(gate):
    return gate.abs().max().item()


@program
def router_items():
    """Reads a number from the GPU in each layer (`.item()`), like a router on the host that chooses the way of a
    layer's tokens."""
    net, x = dense(12), batch(512)
    for _ in steps():
        y = x
        for block in net:
            y = block(y)
            if route_tokens(y[:, :8]) > 1e3:
                y = y / 2
        sampled(y)


@program
def pageable_batches():
    net = dense()
    images = torch.randn(4 * TOKENS, HIDDEN)
    for _ in steps():
        uploaded = images.to(DEVICE)
        sampled(net(uploaded[:TOKENS].to(torch.bfloat16)))


@program
def small_uploads():
    net, x = dense(8), batch()
    ids = torch.zeros(300, 64, dtype=torch.long, device=DEVICE)
    prompts = [torch.arange(64) for _ in range(300)]
    for _ in steps():
        for row, prompt in zip(ids, prompts):
            row.copy_(prompt)
        sampled(net(x) + ids.sum())


@program
def cache_emptying():
    net, x = dense(8), batch()
    for _ in steps():
        wide = [net(x).float().repeat(4, 1) for _ in range(4)]
        sampled(torch.cat(wide))
        del wide
        torch.cuda.empty_cache()


def build_mask(length):
    mask = np.full((length, length), -1e9, dtype=np.float32)
    np.fill_diagonal(mask, 0)
    return mask


@program
def mask_arrays():
    """Allocates a new array of 144 MB on the host in each step."""
    net, x = dense(), batch()
    for _ in steps():
        mask = build_mask(6000)
        sampled(net(x) + float(mask[0, 0]))


# ---- programs that are slow because of Python's garbage collector


class Request:
    def __init__(self, number):
        self.number, self.tokens, self.callback = number, [number], lambda: self


def release_requests(finished):
    finished.clear()
    gc.collect()


@program
def collections_by_hand():
    """Calls gc.collect() in one step of four."""
    net, x = dense(), batch()
    live = [Request(number) for number in range(20000)]
    for _, step in zip(steps(), itertools.count()):
        sampled(net(x))
        if step % 4 == 3:
            release_requests([Request(number) for number in range(100)])
    assert live


def track_requests(live):
    live.append([Request(number) for number in range(1500)])


@program
def request_objects():
    """Makes request objects that refer to each other in cycles, so that Python's garbage collector has to free
    them. The last 60 are kept alive."""
    net, x = dense(), batch()
    live = collections.deque(maxlen=60)
    for _ in steps():
        track_requests(live)
        sampled(net(x))


# ---- programs that are slow because of files or other processes


def load_prompts(folder):
    prompts = []
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as file:
            prompts.append(json.load(file))
    return prompts


@program
def prompt_files():
    net, x = dense(), batch()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for number in range(150):
            with open(os.path.join(folder, f"{number}.json"), "w") as file:
                json.dump({"prompt": some_text(100)}, file)
        for _ in steps():
            load_prompts(folder)
            sampled(net(x))


def report_status():
    subprocess.run(["sleep", "0.008"], check=True)  # stands for a command that sends the status to another host


@program
def status_command():
    net, x = dense(), batch()
    for _ in steps():
        report_status()
        sampled(net(x))


def write_access_log(logger, tokens):
    for token in tokens:
        logger.info("request finished, last token %d", token)
        for handler in logger.handlers:
            os.fsync(handler.stream.fileno())


@program
def access_log():
    net, x = dense(), batch()
    logger = logging.getLogger("access")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(logging.FileHandler("access.log"))
    for _ in steps():
        write_access_log(logger, sampled(net(x))[:6])
    os.remove("access.log")


# ---- programs that are slow because they launch many small kernels


@program
def eager_operators():
    """Launches about 900 small kernels in each step, one by one."""
    x = torch.randn(64, 64, device=DEVICE)
    for _ in steps():
        y = x
        for _ in range(300):
            y = (y * 0.5 + x).clamp(-1, 1)
        sampled(y)


# ---- programs without a fault


@program
def matmuls():
    size = 2 * HIDDEN
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in steps():
        for _ in range(4):
            c = a @ b
        sampled(c)


@program
def prefetching():
    """Copies the next batch to the GPU while the present one is processed, and reads the result of the previous
    one. The program has no fault."""
    net, copies = dense(), torch.cuda.Stream()
    pinned = [torch.randn(TOKENS, HIDDEN).to(torch.bfloat16).pin_memory() for _ in range(2)]
    results = [torch.zeros(64, dtype=torch.long).pin_memory() for _ in range(2)]
    done = [torch.cuda.Event() for _ in range(2)]
    for _, step in zip(steps(), itertools.count()):
        side = step % 2
        with torch.cuda.stream(copies):
            x = pinned[side].to(DEVICE, non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        x.record_stream(torch.cuda.current_stream())
        results[side].copy_(net(x)[:64].argmax(-1), non_blocking=True)
        done[side].record()
        if step > 0:
            done[1 - side].synchronize()
            results[1 - side].tolist()


@program
def graph_decode():
    net, x = dense(), batch()
    sampled(net(x))
    graph, output = capture(net, x)
    for _ in steps():
        graph.replay()
        sampled(output)


# ---- programs on two GPUs


def balance_experts(loads):
    return [sum((load * n) % 7 for n in range(12000)) for load in loads]


@program
def slow_peer():
    """Runs two ranks with an all-reduce in each step. Rank 1 also works on its host, so both ranks wait for it."""
    rank = int(os.environ.setdefault("RANK", "0"))
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    if rank == 0:
        peer = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1"}, stdout=subprocess.DEVNULL)
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    net, x, end = dense(), batch(), until_the_end()
    more = torch.ones(1, device=DEVICE)
    while more.item():
        begin_step()
        if rank == 1:
            balance_experts(range(10))
        y = net(x)
        torch.distributed.all_reduce(y)
        if next(end, "over") == "over":
            more.zero_()
        torch.distributed.all_reduce(more, torch.distributed.ReduceOp.MIN)
    torch.distributed.destroy_process_group()
    if rank == 0:
        peer.wait(30)


if __name__ == "__main__":
    main()
