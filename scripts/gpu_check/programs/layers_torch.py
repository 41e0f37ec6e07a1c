"""layers_torch.py KIND WAY STEPS: the forward pass of a model with few layers in each step.

KIND: llama, mixtral or gpt_oss. WAY: eager; graph, captured and replayed; queued and queued_graph, the same on a GPU
that is kept busy until everything is launched, so that kernels follow each other without gaps and the GPU has not been
under load before; compiled, the graph of a compiled model; late, like compiled, but the model makes its mask, and steps
end with a wait for the stream, like other programs during compilation. Otherwise, each step ends with a wait for an
event, and nothing else waits for one. The mask is made beforehand, because models make another one, with other kernels,
in a capture. LAYERS_DEVICE=cpu tries the program without a GPU, eagerly.
"""
import os
import sys
import warnings

warnings.filterwarnings("ignore")

import torch
import transformers

KIND, WAY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
BUSY_CYCLES = 60_000_000  # number of clock cycles, about 30 ms
DEVICE = os.environ.get("LAYERS_DEVICE", "cuda")
LENGTH = 4096 if DEVICE == "cuda" else 16
LAYERS = 4
TOKENS = dict(vocab_size=32000, pad_token_id=0, bos_token_id=1, eos_token_id=2)
LLAMA = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8)
# Models of four layers that are as wide as those of Llama 3 8B, Mixtral 8x7B and GPT-OSS 20B, with many tokens. So a
# kernel takes much longer than a tick of the GPU's clock (32 ns). A launch from a graph changes a kernel's duration by
# 0.1 to 0.3 us, which is also little in comparison.
KINDS = {"llama": ("Llama", LLAMA), "mixtral": ("Mixtral", dict(LLAMA, num_local_experts=8, num_experts_per_tok=2)),
         "gpt_oss": ("GptOss", dict(hidden_size=2880, intermediate_size=2880, num_attention_heads=64, num_key_value_heads=8, head_dim=64,
                                    num_local_experts=32, num_experts_per_tok=4, layer_types=["full_attention"] * LAYERS,
                                    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))}


def build():
    family, more = KINDS[KIND]
    config = getattr(transformers, family + "Config")(num_hidden_layers=LAYERS, **TOKENS, **more)
    if "num_local_experts" in more:
        # In this implementation of experts, tensor shapes do not depend on the routing. A stream capture requires this.
        config._experts_implementation = "grouped_mm"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = getattr(transformers, family + "ForCausalLM")(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def captured(step):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.inference_mode()
def main():
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = build()
    if WAY in ("compiled", "late"):
        model = torch.compile(model)
    tokens = torch.randint(0, TOKENS["vocab_size"], (1, LENGTH), device=DEVICE)

    mask = torch.full((LENGTH, LENGTH), float("-inf"), device=DEVICE, dtype=torch.bfloat16).triu(1)[None, None]
    # A model whose layers have different types takes a separate mask for each type.
    masks = {"full_attention": mask} if "layer_types" in KINDS[KIND][1] else mask
    places = torch.arange(LENGTH, device=DEVICE)[None]

    more = {} if WAY == "late" else dict(attention_mask=masks, position_ids=places)

    def step():
        return model(input_ids=tokens, use_cache=False, **more).logits

    run = step if DEVICE == "cpu" or WAY in ("eager", "queued") else captured(step)
    done = torch.Event(DEVICE) if DEVICE != "cpu" else None
    for _ in range(STEPS):
        if WAY.startswith("queued") and DEVICE == "cuda":
            torch.cuda._sleep(BUSY_CYCLES)
        run()
        if WAY == "late":
            torch.cuda.current_stream().synchronize()
        elif done:
            done.record()
            done.synchronize()
    print("done")


main()
