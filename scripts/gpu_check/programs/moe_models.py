"""Makes small models with experts, of transformers' own classes, for the other programs in this folder. With
MOE_DEVICE=cpu, the models run without a GPU."""
import os
import warnings

warnings.filterwarnings("ignore")

import torch
import transformers

CUDA = os.environ.get("MOE_DEVICE", "cuda") == "cuda"
VOCABULARY = 8192
# For each model: the number of experts, and the number of experts that a token uses.
SHAPES = {"gpt_oss": (128, 4), "deepseek_v3": (256, 8)}
SMALL = {} if CUDA else dict(hidden_size=128, num_hidden_layers=2)

transformers.logging.set_verbosity_error()
torch.manual_seed(0)


def configuration(name, **other):
    base = dict(vocab_size=VOCABULARY, hidden_size=1024, num_hidden_layers=4, num_attention_heads=8, pad_token_id=0,
                bos_token_id=1, eos_token_id=2)
    experts, top_k = SHAPES[name]
    if name == "gpt_oss":
        family, more = "GptOss", dict(
            num_local_experts=experts, num_experts_per_tok=top_k, head_dim=64, intermediate_size=1024,
            num_key_value_heads=8, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    else:
        family, more = "DeepseekV3", dict(
            n_routed_experts=experts, num_experts_per_tok=top_k, n_group=8, topk_group=4, moe_intermediate_size=512,
            intermediate_size=1024, first_k_dense_replace=0, q_lora_rank=128, kv_lora_rank=64, qk_rope_head_dim=32,
            qk_nope_head_dim=32, v_head_dim=64, num_key_value_heads=8)
    given = {**base, **more, **SMALL, **other}
    if name == "gpt_oss":
        given["layer_types"] = ["full_attention"] * given["num_hidden_layers"]
    made = getattr(transformers, family + "Config")(**given)
    # Unless `MOE_EXPERTS` names another implementation of experts, uses one whose tensor shapes do not depend on the
    # routing. A stream capture requires this.
    made._experts_implementation = os.environ.get("MOE_EXPERTS", "grouped_mm")
    return getattr(transformers, family + "ForCausalLM"), made


def build(name, device, **other):
    """Builds a model. The same arguments always give the same weights."""
    kind, made = configuration(name, **other)
    torch.set_default_dtype(torch.bfloat16 if CUDA else torch.float32)
    with torch.device(device):
        model = kind(made).eval()
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.04, generator=generator)
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.normal_(0, 0.2, generator=generator)
    return model


def blocks(model):
    """Returns (block of experts, gate) for each layer of a model that has experts."""
    for module in model.modules():
        for name in ("gate", "router"):
            gate = module._modules.get(name)
            if gate is not None and module._modules.get("experts") is not None:
                yield module, gate


def ids_of(result, top_k):
    """Returns the numbers of the chosen experts from a gate's result, which has several tensors."""
    return next(part for part in result if not part.is_floating_point() and part.shape[-1] == top_k)


class Steps:
    """Marks the program's steps: launches a CUDA graph at the start of each, and the library counts these launches.
    The graph contains `work`, or almost nothing without `work`. Without a GPU, the stand-in's graph is launched,
    and `work` runs outside it."""

    def __init__(self, work=None):
        self.result = None
        if not CUDA:
            from py_ctypes import Driver

            self.work, self.driver = work, Driver("libcuda.so.1")
            self.driver.capture()
            return
        cell = torch.zeros(1, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # In this mode, other threads may call CUDA during the capture: NCCL's own thread may query events.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            if work:
                self.result = work()
            cell.add_(1)

    def replay(self):
        if CUDA:
            self.graph.replay()
        else:
            self.driver.step()
            if self.work:
                self.result = self.work()


def wait():
    if CUDA:
        torch.cuda.synchronize()
