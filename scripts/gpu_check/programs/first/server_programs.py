"""server_programs.py NAME: servers in PyTorch, and programs that share a GPU or use two streams. Each NAME is slow for
one reason, or for none (programs.txt)."""
import asyncio
import contextlib
import json
import logging
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steps import begin_step, main, program, seconds, steps, until_the_end

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


def clean_environment():
    """Returns the environment of a process that is not part of this run."""
    removed = ("TLLM", "LD_PRELOAD", "CUDA_INJECTION", "NVTX_INJECTION")
    return {name: value for name, value in os.environ.items() if not name.startswith(removed)}


# ---- programs whose GPU is also used by a process of another run


def matmuls_for(wide, duration):
    """Runs matrix products for `duration` seconds, and waits for the GPU every few milliseconds."""
    end = time.monotonic() + duration
    while time.monotonic() < end:
        for _ in range(4):
            wide @ wide
        torch.cuda.synchronize()


def small_kernels(values):
    for _ in range(500):
        values.mul_(1.0)
    torch.cuda.synchronize()


def device_copies(source, target):
    for _ in range(20):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()


def be_neighbour(kind):
    """Uses the GPU until the process is killed, its parent ends, or a time limit is over."""
    parent, end = os.getppid(), time.monotonic() + seconds() + 60
    wide, values = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16), torch.ones(1 << 16, device=DEVICE)
    source, target = (torch.zeros(1 << 28, device=DEVICE, dtype=torch.uint8) for _ in range(2))
    matmuls_for(wide, 0.2)
    print("ready", flush=True)
    while os.getppid() == parent and time.monotonic() < end:
        if kind == "matmuls":
            matmuls_for(wide, 0.1)
        elif kind == "kernels":
            small_kernels(values)
        elif kind == "copies":
            device_copies(source, target)
        else:
            matmuls_for(wide, 0.03)
            time.sleep(0.07)


@contextlib.contextmanager
def neighbour(kind):
    """Runs a process of another run that uses the same GPU. The body begins when that process uses the GPU."""
    words = [sys.executable, os.path.abspath(__file__), "--neighbour", kind]
    child = subprocess.Popen(words, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             text=True, start_new_session=True)
    try:
        if child.stdout.readline().strip() != "ready":
            sys.exit("the neighbour did not start")
        yield
    finally:
        child.kill()
        child.wait()


@program
def matmul_neighbour():
    net, x = dense(), batch()
    sampled(net(x))
    with neighbour("matmuls"):
        for _ in steps():
            sampled(net(x))


@program
def small_kernel_neighbour():
    net, x = dense(), batch()
    sampled(net(x))
    with neighbour("kernels"):
        for _ in steps():
            sampled(net(x))


@program
def copy_neighbour():
    net, x = dense(), batch()
    sampled(net(x))
    with neighbour("copies"):
        for _ in steps():
            sampled(net(x))


# ---- programs with two streams that could run at once, but take turns
#
# In their steps, these programs use only these two streams, and not the default stream.


def narrow_rows():
    """Returns rows of which `narrow_layers` uses one thread block each, so that most SMs remain idle."""
    return torch.randn(16, 400_000, device=DEVICE)


def narrow_layers(x, layers):
    for _ in range(layers):
        x = nn.functional.layer_norm(x, x.shape[1:])
    return x


def two_streams():
    """Returns two streams, after the default stream has ended its work."""
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    return streams


@program
def early_event_wait():
    """Runs two independent towers. The second waits for the first before it begins, although it needs the result only
    at its end."""
    image, text = narrow_rows(), narrow_rows()
    images, texts = two_streams()
    encoded = torch.cuda.Event()
    for _ in steps():
        with torch.cuda.stream(images):
            first = narrow_layers(image, 30)
            encoded.record()
        with torch.cuda.stream(texts):
            texts.wait_event(encoded)
            second = narrow_layers(text, 30)
            sampled(first[:, :1000] + second[:, :1000])


@program
def layer_stream_waits():
    """Runs two independent towers. Each waits for the other after every four layers."""
    image, text = narrow_rows(), narrow_rows()
    images, texts = two_streams()
    for _ in steps():
        first, second = image, text
        for _ in range(8):
            with torch.cuda.stream(images):
                first = narrow_layers(first, 4)
            texts.wait_stream(images)
            with torch.cuda.stream(texts):
                second = narrow_layers(second, 4)
            images.wait_stream(texts)
        with torch.cuda.stream(texts):
            sampled(second[:, :1000])


def wait_for_images(images):
    images.synchronize()


@program
def host_between_streams():
    """Runs two independent towers. The host waits for the first before it launches the second."""
    image, text = narrow_rows(), narrow_rows()
    images, texts = two_streams()
    for _ in steps():
        with torch.cuda.stream(images):
            first = narrow_layers(image, 30)
        wait_for_images(images)
        with torch.cuda.stream(texts):
            second = narrow_layers(text, 30)
            sampled(first[:, :1000] + second[:, :1000])


@program
def single_upload_buffer():
    """Uploads four parts of a batch from pinned memory into one buffer, so that each upload waits until the model has
    read the previous part. Two buffers would allow uploads while the model runs."""
    net, uploaded = dense(10), batch(4096)
    parts = [torch.randn(4096, HIDDEN).to(torch.bfloat16).pin_memory() for _ in range(4)]
    copies, computes = two_streams()
    arrived, read = torch.cuda.Event(), torch.cuda.Event()
    for _ in steps():
        for part in parts:
            with torch.cuda.stream(copies):
                copies.wait_event(read)
                uploaded.copy_(part, non_blocking=True)
                arrived.record()
            with torch.cuda.stream(computes):
                computes.wait_event(arrived)
                output = net(uploaded)
                read.record()
        with torch.cuda.stream(computes):
            sampled(output)


# ---- servers

# A client in a process of its own: connections that each send a line, wait for a line and pause.
CLIENT = """
import asyncio, sys
port, connections, words, pause = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
line = (" ".join("word%d" % (n * 37 % 1000) for n in range(words)) + "\\n").encode()

async def connection():
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    while True:
        writer.write(line)
        await writer.drain()
        if not await reader.readline():
            return
        await asyncio.sleep(pause)

async def run():
    await asyncio.gather(*(connection() for _ in range(connections)))

asyncio.run(run())
"""


def deliver(answers, tokens):
    for answer in answers:
        if not answer.done():
            answer.set_result(tokens)


def short_answer(tokens):
    return b"%d\n" % tokens[0]


def plain_prompt(text):
    return len(text)


@torch.inference_mode()
def run_batches(net, x, requests, loop, connections):
    """Runs a step for each batch, which has a request of each connection."""
    for _ in until_the_end():
        answers = [requests.get(timeout=30) for _ in range(connections)]
        begin_step()
        tokens = sampled(net(x))
        loop.call_soon_threadsafe(deliver, answers, tokens)


@torch.inference_mode()
def run_continuously(net, x, requests, loop, connections):
    """Runs steps without a pause. A request takes 6 to 12 steps, and new requests join at each step."""
    chosen, active = random.Random(4), []
    for _ in until_the_end():
        if not active:
            active.append([requests.get(timeout=30), chosen.randint(6, 12)])
        while not requests.empty():
            active.append([requests.get_nowait(), chosen.randint(6, 12)])
        begin_step()
        tokens = sampled(net(x))
        for request in active:
            request[1] -= 1
        finished = [answer for answer, left in active if left == 0]
        active = [request for request in active if request[1] > 0]
        if finished:
            loop.call_soon_threadsafe(deliver, finished, tokens)


def serve(prepare=plain_prompt, finish=short_answer, engine=run_batches, layers=None, connections=4, words=8, pause=0,
          loop_factory=None):
    """Serves clients of another process over sockets. The event loop reads requests and writes answers. The engine runs
    the model in a separate thread. `prepare` and `finish` run in the event loop, for each request and each answer."""
    net, x, requests = dense(layers), batch(), queue.Queue()
    sampled(net(x))

    async def handle(reader, writer):
        while line := await reader.readline():
            prepare(line.decode())
            answer = asyncio.get_running_loop().create_future()
            requests.put(answer)
            writer.write(finish(await answer))
            await writer.drain()
        writer.close()

    async def run():
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 24)
        port = server.sockets[0].getsockname()[1]
        words_of_client = [sys.executable, "-c", CLIENT, *map(str, (port, connections, words, pause))]
        client = subprocess.Popen(words_of_client, env=clean_environment(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            with ThreadPoolExecutor(1, "engine") as pool:
                await loop.run_in_executor(pool, engine, net, x, requests, loop, connections)
        finally:
            client.kill()
            client.wait()
            server.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


@program
def burst_neighbour():
    """Serves one client, which pauses for 4 ms before each request. Another process uses the GPU for 30 ms of each
    100 ms."""
    with neighbour("bursts"):
        serve(connections=1, pause=0.004)


# ---- servers whose event loop is blocked


@program
def loop_tokenising():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    vocabulary = {"[UNK]": 0} | {f"word{n}": n + 1 for n in range(1000)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()

    def tokenise_prompt(text):
        return tokenizer.encode(text).ids

    serve(prepare=tokenise_prompt, words=3000)


@program
def loop_fsync():
    """Writes a log entry to the disk for each part of an answer, in the event loop."""
    logger = logging.getLogger("requests")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler("requests.log")
    logger.addHandler(handler)

    def log_answer(tokens):
        for token in tokens[:6]:
            logger.info("answer has token %d", token)
            os.fsync(handler.stream.fileno())
        return short_answer(tokens)

    serve(finish=log_answer)
    os.remove("requests.log")


@program
def uvloop_json():
    """Makes large answers with the probabilities of tokens, in an event loop of uvloop."""
    import uvloop
    chosen = random.Random(6)
    probabilities = [{"token": n, "probability": chosen.random()} for n in range(5000)]

    def serialise_answer(tokens):
        return json.dumps({"tokens": tokens, "probabilities": probabilities}).encode() + b"\n"

    serve(finish=serialise_answer, loop_factory=uvloop.new_event_loop)


def resolve_user(text):
    time.sleep(0.004)  # stands for a blocking request to a name server
    return text


@program
def loop_lookup():
    serve(prepare=resolve_user)


# ---- programs that ask a service in each step, or are a service, over a socket


@contextlib.contextmanager
def peer(behave):
    """Runs `behave(path)` in a child process, where `path` is that of a named socket. The body gets the path. Must be
    called before the program uses CUDA, because the child is forked."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(OSError):
                behave(path)
            os._exit(0)
        try:
            yield path
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def answer_questions(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        asked, _ = listener.accept()
        while asked.recv(1 << 16):
            time.sleep(0.006)  # stands for the work of another machine
            asked.sendall(bytes(100))


def ask_now_and_then(path):
    asks = connected(path)
    while True:
        time.sleep(random.expovariate(30))
        asks.sendall(bytes(100))
        asks.recv(100)


def connected(path):
    """Returns a socket that is connected to the named one, as soon as there is one."""
    while True:
        try:
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            return one
        except OSError:
            one.close()
            time.sleep(0.01)


def look_up(service, tokens):
    service.sendall(json.dumps(tokens).encode())
    return service.recv(100)


@program
def service_lookup():
    with peer(answer_questions) as path:
        service, net, x = connected(path), dense(), batch()
        for _ in steps():
            look_up(service, sampled(net(x)))


@program
def socket_requests():
    """Serves one client, which waits for a random time before each request."""
    with peer(ask_now_and_then) as path, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        requests, _ = listener.accept()
        net, x = dense(), batch()
        for _ in steps():
            requests.recv(100)
            requests.sendall(json.dumps(sampled(net(x))[:8]).encode())


# ---- programs without a fault, and one that waits for requests


@program
def free_loop_server():
    serve(engine=run_continuously, layers=64, connections=24)


@program
def waiting_server():
    """Serves one client, which pauses for 30 ms before each request."""
    serve(connections=1, pause=0.03)


def fill_buffers(source, free, filled):
    while True:
        buffer = free.get()
        np.copyto(buffer.numpy(), source)
        filled.put(buffer)


@program
def fast_loaders():
    """Gets batches from two threads, which fill pinned buffers faster than the model uses them."""
    net, free, filled = dense(96), queue.Queue(), queue.Queue()
    source = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16).view(torch.int16).numpy()
    for _ in range(6):
        free.put(torch.empty(TOKENS, HIDDEN, dtype=torch.int16).pin_memory())
    for _ in range(2):
        threading.Thread(target=fill_buffers, args=[source, free, filled], daemon=True).start()
    for _ in steps():
        buffer = filled.get()
        x = buffer.to(DEVICE, non_blocking=True).view(torch.bfloat16)
        sampled(net(x))
        free.put(buffer)


class Speech(nn.Module):
    """An encoder of audio and a decoder of text, like those of Whisper."""

    def __init__(self, width=1024, heads=16, length=64):
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv1d(80, width, 3, padding=1), nn.GELU(),
                                          nn.Conv1d(width, width, 3, stride=2, padding=1), nn.GELU())
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        layer = nn.TransformerDecoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 6)
        self.tokens, self.logits = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def encode(self, features):
        return self.encoder(self.convolutions(features).transpose(1, 2))

    def decode(self, ids, memory):
        """Returns the next token after each position."""
        return self.logits(self.decoder(self.tokens(ids), memory, tgt_mask=self.mask, tgt_is_causal=True)).argmax(-1)


@program
def speech():
    """Transcribes batches of audio. The encoder runs once, and then the decoder makes 30 tokens with a CUDA graph. A
    step is a token."""
    torch.backends.mha.set_fastpath_enabled(False)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        with torch.device(DEVICE):
            model = Speech().half().eval()
            ids = torch.zeros(32, 64, dtype=torch.long)
        audio = torch.randn(32, 80, 3000).half().pin_memory()
        memory = model.encode(audio.to(DEVICE))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model.decode(ids, memory)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            following = model.decode(ids, memory)
        for _ in until_the_end():
            for place in range(30):
                begin_step()
                if place == 0:
                    ids.zero_()
                    memory.copy_(model.encode(audio.to(DEVICE, non_blocking=True)))
                graph.replay()
                tokens = following[:, place]
                ids[:, place + 1] = tokens
                tokens.tolist()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--neighbour"]:
        be_neighbour(sys.argv[2])
    else:
        main()
