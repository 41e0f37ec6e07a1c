"""moe_ranks.py MODEL HOW STEPS: a small model whose experts are spread over the GPUs of several ranks. RANK,
LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set, like by torchrun.

HOW same: transformers' own expert parallelism, in which all ranks have the same tokens and add up their results. HOW
own: each rank has its own tokens, and an all-to-all takes them to their experts and back. Each step first launches a
graph, by which steps are counted, and then decodes. TRUTH_LOG gets a JSON object: for each step and layer, the tokens
of each expert as far as this rank knows them, the tokens of this rank's experts, and the sum of the logits; and the
same before the steps.
"""
import json
import os
import sys
from functools import partial

import torch
import torch.distributed as dist

from moe_models import CUDA, VOCABULARY, Steps, blocks, build, ids_of, wait

TOKENS, WARM = 50, 3
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# For each model: the number of experts, and the number of experts that a token uses. The choices of
# one rank's TOKENS tokens cannot be spread evenly over the experts, because the number of choices
# is not a multiple of the number of experts.
SHAPES = {"gpt_oss": (32, 4), "deepseek_v3": (64, 8)}


class Exchanged(torch.nn.Module):
    """A layer's experts, of which each rank keeps a part. The hidden state of a token is sent to the rank of each of
    its experts, and the result is sent back."""

    def __init__(self, experts, count):
        super().__init__()
        self.here, self.got = count // RANKS, 0
        for name, parameter in list(experts.named_parameters(recurse=False)):
            part = parameter[RANK * self.here:(RANK + 1) * self.here].detach().clone()
            setattr(experts, name, torch.nn.Parameter(part, requires_grad=False))
        experts.num_experts = self.here
        self.local = experts

    def forward(self, hidden, ids, weights):
        pairs, top_k = ids.reshape(-1), ids.shape[-1]
        owner = pairs // self.here
        order = owner.argsort(stable=True)
        sent = torch.bincount(owner, minlength=RANKS)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        sent, got = sent.tolist(), got.tolist()
        rows = exchange(hidden[order // top_k], sent, got)
        ids = exchange(pairs[order] % self.here, sent, got).view(-1, 1)
        self.got = len(rows)
        done = self.local(rows, ids, torch.ones(ids.shape, dtype=weights.dtype, device=weights.device))
        back = torch.empty_like(hidden[order // top_k])
        back[order] = exchange(done, got, sent)
        return (back.view(-1, top_k, back.shape[-1]) * weights.unsqueeze(-1)).sum(1).to(hidden.dtype)


def exchange(rows, sent, got):
    received = rows.new_empty(sum(got), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), got, sent)
    return received


def same(name, device, experts, sizes):
    """Spreads the experts over the ranks with transformers' expert parallelism, before the weights are loaded."""
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.distributed import DistributedConfig

    given = DistributedConfig(tp_size=RANKS, tp_plan="auto", enable_expert_parallel=True)
    model = build(name, device, **sizes)
    return type(model).maybe_distribute_model(model, given, init_device_mesh(device.type, (RANKS,)))


def own(name, device, experts, sizes):
    model = build(name, device, **sizes)
    for block, _ in list(blocks(model)):
        block.experts = Exchanged(block.experts, experts)
    return model


class Truth:
    """Counts the tokens of each expert in each layer since the counts were last read."""

    def __init__(self, model, how, device, experts, top_k):
        self.how, self.top_k, self.here = how, top_k, experts // RANKS
        self.blocks = [block for block, _ in blocks(model)]
        self.loads = [torch.zeros(experts, dtype=torch.int64, device=device) for _ in self.blocks]
        for place, (_, gate) in enumerate(blocks(model)):
            gate.register_forward_hook(partial(self.count, place))

    def count(self, place, gate, args, result):
        ids = ids_of(result, self.top_k).reshape(-1)
        # expert parallelism numbers this rank's experts from 0; the next number stands for all
        # other experts
        if self.how == "same":
            ids = ids[ids < self.here] + RANK * self.here
        self.loads[place] += torch.bincount(ids, minlength=len(self.loads[place]))

    def look(self):
        loads = [of_layer.tolist() for of_layer in self.loads]
        for of_layer in self.loads:
            of_layer.zero_()
        if self.how == "own":
            return {"loads": loads, "here": [block.experts.got for block in self.blocks]}
        return {"loads": loads, "here": [sum(of_layer) for of_layer in loads]}


def main():
    name, how, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    experts, top_k = SHAPES[name]
    sizes = dict(hidden_size=256, num_hidden_layers=2, num_experts_per_tok=top_k, intermediate_size=256,
                 **({"num_local_experts": experts} if name == "gpt_oss" else
                    {"n_routed_experts": experts, "moe_intermediate_size": 128}))
    model = {"same": same, "own": own}[how](name, device, experts, sizes)
    truth = Truth(model, how, device, experts, top_k)
    generator = torch.Generator().manual_seed(RANK if how == "own" else 0)
    tokens = torch.randint(3, VOCABULARY, (TOKENS, 1), generator=generator).to(device)
    positions = torch.zeros(TOKENS, 1, dtype=torch.long, device=device)

    def step():
        return model(input_ids=tokens, position_ids=positions, use_cache=False).logits

    with torch.no_grad():
        for _ in range(WARM):
            step()
        found = {"tokens": TOKENS, "top_k": top_k, "warm": truth.look(), "steps": []}
        marker = Steps()
        for _ in range(steps):
            marker.replay()
            logits = step()
            wait()
            found["steps"].append({**truth.look(), "logits": logits.double().sum().item()})
    with open(os.environ["TRUTH_LOG"], "w") as log:
        json.dump(found, log)
    dist.barrier()
    dist.destroy_process_group()


main()
