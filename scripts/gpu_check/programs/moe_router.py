"""Small models with experts on a GPU: moe_router.py MODEL HOW STEPS, MODEL gpt_oss or deepseek_v3, HOW eager, compiled or
graph.

Each step is a decode of BATCH tokens and, last, one launch of a marker graph, by which steps are counted. TRUTH_LOG
gets a JSON object: for each step how far apart the loads of the experts were, the sum of the logits, and its seconds; and
how many kernels of matrix products a step has.
"""
import json
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch
import transformers

BATCH = 64
WARM = 6
# Words in the names of kernels that multiply matrices, cuBLAS's and Inductor's.
GEMMS = ("gemm", "gemv", "nvjet", "cutlass", "splitk", "_mm")

transformers.logging.set_verbosity_error()
torch.manual_seed(0)


def build(name):
    base = dict(vocab_size=8192, hidden_size=1024, num_hidden_layers=4, num_attention_heads=8, pad_token_id=0,
                bos_token_id=1, eos_token_id=2)
    if name == "gpt_oss":
        family, more = "GptOss", dict(
            num_local_experts=128, num_experts_per_tok=4, head_dim=64, intermediate_size=1024, num_key_value_heads=8,
            layer_types=["full_attention"] * 4, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    else:
        family, more = "DeepseekV3", dict(
            n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4, moe_intermediate_size=512,
            intermediate_size=1024, first_k_dense_replace=0, q_lora_rank=128, kv_lora_rank=64, qk_rope_head_dim=32,
            qk_nope_head_dim=32, v_head_dim=64, num_key_value_heads=8)
    configuration = getattr(transformers, family + "Config")(**base, **more)
    # One whose shapes do not depend on the routing, as a capture needs.
    configuration._experts_implementation = os.environ.get("MOE_EXPERTS", "grouped_mm")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = getattr(transformers, family + "ForCausalLM")(configuration).eval()
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.04, generator=generator)
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.normal_(0, 0.2, generator=generator)
    return model


def gates(model):
    for module in model.modules():
        for name in ("gate", "router"):
            gate = module._modules.get(name)
            if gate is not None and module._modules.get("experts") is not None:
                yield gate


def main():
    name, how, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = build(name)
    experts, top_k = (128, 4) if name == "gpt_oss" else (256, 8)
    loads = []

    def count(gate, args, result):
        ids = next(part for part in result if not part.is_floating_point() and part.shape[-1] == top_k)
        loads[gate.place].scatter_add_(0, ids.reshape(-1), ones)

    ones = torch.ones(BATCH * top_k, dtype=torch.int64, device="cuda")
    for place, gate in enumerate(gates(model)):
        gate.place = place
        loads.append(torch.zeros(experts, dtype=torch.int64, device="cuda"))
        gate.register_forward_hook(count)
    tokens = torch.randint(3, 8192, (BATCH, 1), device="cuda")
    positions = torch.zeros(BATCH, 1, dtype=torch.long, device="cuda")
    run = torch.compile(model) if how == "compiled" else model

    def step():
        return run(input_ids=tokens, position_ids=positions, use_cache=False).logits

    # Each step is one launch of a graph: of the whole step, or of one that does nothing of note.
    cell = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(WARM if how != "compiled" else 3):
                logits = step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            if how == "graph":
                logits = step()
            cell.add_(1)
        found = []
        for n in range(steps):
            for of_layer in loads:
                of_layer.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter()
            graph.replay()
            if how != "graph":
                logits = step()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            spread = max(int(of_layer.max() - of_layer.min()) for of_layer in loads)
            totals = sorted({int(of_layer.sum()) for of_layer in loads})
            found.append({"spread": spread, "tokens": totals, "logits": logits.double().sum().item(), "seconds": seconds})
        gemms = 0
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            if how == "graph":
                graph.replay()
            else:
                step()
            torch.cuda.synchronize()
        names = [event.name.lower() for event in profile.events()]
        gemms = sum(any(word in name for word in GEMMS) for name in names)
    with open(os.environ["TRUTH_LOG"], "w") as log:
        json.dump({"gemms": gemms, "experts": os.environ.get("MOE_EXPERTS"), "layers": len(loads), "steps": found, "expected": BATCH * top_k,
                   "memory": torch.cuda.max_memory_allocated()}, log)


main()
