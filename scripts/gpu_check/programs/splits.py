"""splits.py STEPS: several ranks. Each step calls an all-reduce within a pair of ranks. The pairs' communicators
are split from the communicator of all ranks."""
import os
import sys

import torch
import torch.distributed as dist

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
# With device_id, torch splits each pair's communicator from the communicator of all ranks. Without it, torch would
# create separate communicators.
dist.init_process_group("nccl", device_id=device)
x = torch.ones(1 << 16, device=device)
dist.all_reduce(x)
pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks, 2)]


def step():
    for _ in range(4):
        torch.cuda._sleep(100_000)
        dist.all_reduce(x, group=pairs[rank // 2])
    torch.cuda.current_stream().synchronize()


for _ in range(int(sys.argv[1])):
    step()
dist.destroy_process_group()
