"""tensor_parallel.py each | leader: a decode loop on two ranks with NCCL.

each: every rank reads the tokens from its GPU. leader: only rank 0 reads them, and sends them to the other rank over
the CPU. So the other rank never waits for its GPU within a step."""
import os
import random
import sys

import torch
import torch.distributed as dist
from common import mark

WIDTH, LAYERS, HEADS, VOCABULARY, STEPS = 256, 3, 8, 4000, 220
variant = sys.argv[1]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
torch.manual_seed(rank)
half = dict(device="cuda", dtype=torch.half)
table = torch.zeros(VOCABULARY, WIDTH, **half)
if rank == 0:
    table.normal_()
dist.broadcast(table, 0)
up = [torch.randn(WIDTH, 2 * WIDTH // world, **half) / 16 for _ in range(LAYERS)]
down = [torch.randn(2 * WIDTH // world, WIDTH, **half) / 32 for _ in range(LAYERS)]
values = [torch.randn(WIDTH, WIDTH // world, **half) / 16 for _ in range(LAYERS)]
outs = [torch.randn(WIDTH // world, WIDTH, **half) / 16 for _ in range(LAYERS)]
head = table.T.chunk(world, 1)[rank].contiguous()


def norm(x):
    return torch.nn.functional.rms_norm(x, (WIDTH,))


def forward(x, caches):
    for layer in range(LAYERS):
        value = (norm(x) @ values[layer]).view(x.shape[0], 1, HEADS // world, -1).transpose(1, 2)
        caches[layer] = torch.cat([caches[layer], value], 2)[:, :, -64:]
        attended = torch.nn.functional.scaled_dot_product_attention(value, caches[layer], caches[layer])
        out = attended.transpose(1, 2).reshape(x.shape[0], -1) @ outs[layer]
        dist.all_reduce(out)
        x = x + out
        out = torch.nn.functional.silu(norm(x) @ up[layer]) @ down[layer]
        dist.all_reduce(out)
        x = x + out
    logits = norm(x) @ head
    parts = [torch.empty_like(logits) for _ in range(world)]
    dist.all_gather(parts, logits)
    return torch.cat(parts, -1).float().argmax(-1)


random.seed(0)
batch = 4
tokens = [1] * batch
caches = [torch.zeros(batch, HEADS // world, 1, WIDTH // HEADS, **half) for _ in range(LAYERS)]
for step in range(STEPS):
    mark()
    if variant == "leader":
        message = [tokens]
        dist.broadcast_object_list(message, 0, device=torch.device("cpu"))
        tokens = message[0]
    ids = torch.tensor(tokens).pin_memory().to("cuda", non_blocking=True)
    chosen = forward(table[ids], caches)
    if variant == "each" or rank == 0:
        tokens = chosen.tolist()
torch.cuda.synchronize()
print("tensor_parallel", variant, rank, tokens)
dist.barrier()
dist.destroy_process_group()
