"""moe_router.py MODEL HOW STEPS: small models with experts. MODEL: gpt_oss or deepseek_v3. HOW: eager, compiled, graph
or pace.

Each step first launches a graph, by which steps are counted, and then decodes. The graph has the whole step (graph,
pace) or almost nothing. TRUTH_LOG gets a JSON object: for each step, the difference between the loads of the experts,
the sum of the logits, and its seconds; and the kernels that multiply matrices in a single gate. pace: a captured step
of many tokens and nothing else; for each step, the time when it began.
"""
import json
import os
import sys
import time

import torch

from moe_models import CUDA, SHAPES, VOCABULARY, Steps, blocks, build, ids_of, wait

BATCH, MANY = 64, 2048 if CUDA else 64
WARM = 6
DEVICE = "cuda" if CUDA else "cpu"
# Parts of the names of kernels that multiply matrices, as cuBLAS and Inductor name them.
PRODUCTS = ("gemm", "gemv", "nvjet", "cutlass", "splitk", "_mm")


def kernels_of(gate, model):
    """Returns the names of the matrix products that one gate launches for as many tokens as a step has."""
    activity = torch.profiler.ProfilerActivity
    hidden = torch.randn(BATCH, model.config.hidden_size, device=DEVICE).to(next(model.parameters()).dtype)
    with torch.inference_mode():
        type(gate).forward(gate, hidden)
        wait()
        with torch.profiler.profile(activities=[activity.CUDA if CUDA else activity.CPU]) as profile:
            for _ in range(3):
                type(gate).forward(gate, hidden)
            wait()
    names = {event.name for event in profile.events()}
    return sorted(name for name in names if any(word in name.lower() for word in PRODUCTS))


def counted(model, top_k, batch, experts):
    """Adds a counter of tokens per expert to each layer's gate. Returns the counters."""
    loads = []
    ones = torch.ones(batch * top_k, dtype=torch.int64, device=DEVICE)

    def count(gate, args, result):
        loads[gate.place].scatter_add_(0, ids_of(result, top_k).reshape(-1), ones)

    for place, (_, gate) in enumerate(blocks(model)):
        gate.place = place
        loads.append(torch.zeros(experts, dtype=torch.int64, device=DEVICE))
        gate.register_forward_hook(count)
    return loads


def main():
    name, how, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = build(name, DEVICE)
    experts, top_k = SHAPES[name]
    batch = MANY if how == "pace" else BATCH
    loads = counted(model, top_k, batch, experts) if how != "pace" else []
    tokens = torch.randint(3, VOCABULARY, (batch, 1), device=DEVICE)
    given = {"position_ids": torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)}
    if name == "gpt_oss":
        # The mask is made beforehand. The model would make it with a copy from the host, which a capture does not
        # allow.
        nothing = torch.zeros(batch, 1, 1, 1, dtype=next(model.parameters()).dtype, device=DEVICE)
        given["attention_mask"] = {"full_attention": nothing}
    run = torch.compile(model) if how == "compiled" else model

    def step():
        return run(input_ids=tokens, use_cache=False, **given).logits

    captured = how in ("graph", "pace")
    truth = {"experts": os.environ.get("MOE_EXPERTS"), "layers": len(list(blocks(model))), "expected": batch * top_k}
    with torch.inference_mode():
        if CUDA:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(WARM if how != "compiled" else 3):
                    step()
        else:
            step()
        wait()
        marker = Steps(step if captured else None)
        if how == "pace":
            truth["begins"] = []
            for _ in range(steps):
                truth["begins"].append(time.perf_counter())
                marker.replay()
                wait()
        else:
            truth["steps"] = [one(marker, None if captured else step, loads) for _ in range(steps)]
    if os.environ.get("OF_GATE"):
        truth["gate"] = kernels_of(next(blocks(model))[1], model)
    with open(os.environ["TRUTH_LOG"], "w") as log:
        json.dump(truth, log)


def one(marker, step, loads):
    for of_layer in loads:
        of_layer.zero_()
    wait()
    began = time.perf_counter()
    marker.replay()
    logits = step() if step else marker.result
    wait()
    seconds = time.perf_counter() - began
    spread = max(int(of_layer.max() - of_layer.min()) for of_layer in loads)
    return {"spread": spread, "tokens": sorted({int(of_layer.sum()) for of_layer in loads}),
            "logits": logits.double().sum().item(), "seconds": seconds}


main()
