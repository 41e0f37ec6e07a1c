"""engines.py FOLDER ENGINE [moved]: an engine's own source, with stand-ins for all that it imports of others.

Prints a line of JSON for each way that logits go. `moved`: the source calls its logits by another name.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from unittest import mock

import torch
import torch._dynamo  # before there is a stand-in for triton

EXPERTS, TOP_K, TOKENS = 64, 8, 100
FOLDER, ENGINE = sys.argv[1:3]
MOVED = "moved" in sys.argv


class Base(torch.nn.Module):
    """What the engines' classes are derived from."""


NAMES = {"MoERunnerInterface": Base, "BaseFusedOp": Base}
# The machine is of no kind that they know.
for _name in ("cuda", "hip", "npu", "cpu", "xpu", "musa"):
    NAMES["is_" + _name] = bool
NAMES["get_bool_env_var"] = lambda *args: False


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = NAMES.get(name) or mock.MagicMock(name=name)
        setattr(self, name, value)
        return value


class Loader(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        data = super().get_data(path)
        return data.replace(b"router_logits", b"gate_logits") if MOVED else data

    def set_data(self, *args, **named):
        pass


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in ("vllm", "sglang", "triton", "flashinfer", "sgl_kernel"):
            return None
        file = os.path.join(FOLDER, name.replace(".", "/") + ".py")
        if os.path.exists(file):
            return importlib.machinery.ModuleSpec(name, Loader(name, file), origin=file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


class Experts(torch.nn.Module):
    """Experts that choose for themselves."""

    def __init__(self):
        super().__init__()
        self.quant_method = types.SimpleNamespace(is_monolithic=False)
        self.e_score_correction_bias = None

    def forward_monolithic(self, x, router_logits, input_ids):
        return choose(router_logits, self.e_score_correction_bias)

    def forward_modular(self, topk_ids, **others):
        return topk_ids


def choose(logits, bias=None):
    scores = logits.sigmoid() if bias is not None else logits.softmax(-1)
    return (scores if bias is None else scores + bias).topk(TOP_K, -1)[1]


def show(way, ids):
    loads = torch.bincount(ids.reshape(-1), minlength=EXPERTS)
    first = ids[0].sort()[0].tolist()
    print(json.dumps({"way": way, "spread": int(loads.max() - loads.min()), "first": first}), flush=True)


def logits():
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(3)) * 3


def name_of_logits(logits):
    return {"gate_logits" if MOVED else "router_logits": logits}


def vllm():
    MoERunner = importlib.import_module("vllm.model_executor.layers.fused_moe.runner.moe_runner").MoERunner

    def runner(monolithic=False, bias=None, rank=None):
        made = MoERunner.__new__(MoERunner)
        Base.__init__(made)
        parallel = types.SimpleNamespace(dp_size=2 if rank is not None else 1, dp_rank=rank or 0, use_ep=rank is not None)
        made.moe_config = types.SimpleNamespace(
            num_experts=EXPERTS, num_logical_experts=EXPERTS, moe_parallel_config=parallel, is_sequence_parallel=False,
            pcp_size=1)
        made.router = types.SimpleNamespace(
            top_k=TOP_K, e_score_correction_bias=bias, prepare_monolithic_logits=lambda logits: logits,
            select_experts=lambda router_logits=None, gate_logits=None, **others: (
                None, choose(router_logits if router_logits is not None else gate_logits, bias)))
        made._shared_experts = None
        made.layer_name = "layer"
        made.routed_experts = Experts()
        made.routed_experts.e_score_correction_bias = bias
        made.routed_experts.quant_method.is_monolithic = monolithic
        return made

    def ids(made):
        return made._apply_quant_method(hidden_states=None, shared_experts_input=None, **name_of_logits(logits()))[1]

    with mock.patch.object(MoERunner, "do_naive_dispatch_combine", False), \
            mock.patch.object(MoERunner, "_quant_method", mock.MagicMock()):
        show("modular", ids(runner()))
        if not MOVED:
            show("monolithic", ids(runner(monolithic=True)))
        show("bias", ids(runner(bias=torch.randn(EXPERTS) * 3)))
        ranks = [ids(runner(rank=rank)) for rank in range(2)]
        for rank, of_rank in enumerate(ranks):
            show("rank %d" % rank, of_rank)
        show("both ranks", torch.cat(ranks))


def sglang():
    topk = importlib.import_module("sglang.srt.layers.moe.topk")

    def made(bias=None):
        one = topk.TopK.__new__(topk.TopK)
        Base.__init__(one)
        one.layer_id, one.is_draft, one.enable_waterfill, one.waterfill_balancer = 0, False, False, None
        one.topk_config = topk.TopKConfig(
            top_k=TOP_K, correction_bias=bias, output_format=topk.TopKOutputFormat.STANDARD,
            shared_experts=types.SimpleNamespace(num_shared_topk_slots=0))
        block = torch.nn.Module()
        block.topk = one
        return one

    def select(hidden_states, topk_config, router_logits=None, gate_logits=None, **others):
        given = router_logits if router_logits is not None else gate_logits
        ids = choose(given, topk_config.correction_bias)
        return topk.StandardTopKOutput(torch.ones(ids.shape), ids, given)

    with mock.patch.object(topk, "select_experts", select), \
            mock.patch.object(topk, "resolve_routing_inputs", lambda **given: (None, None)):
        hidden = torch.zeros(TOKENS, 4)
        show("forward_cuda", made().forward_cuda(hidden, logits()).topk_ids)
        show("forward_native", made().forward_native(hidden, **name_of_logits(logits())).topk_ids)
        show("bias", made(torch.randn(EXPERTS) * 3).forward_cuda(hidden, logits()).topk_ids)
        bypassed = made()
        bypassed.topk_config.output_format = topk.TopKOutputFormat.BYPASSED
        given = bypassed.forward_cuda(hidden, logits())
        show("bypassed", choose(given.raw_gate_logits if MOVED else given.raw_router_logits))


# There is no compiler for what they compile at once.
torch.compile = lambda *args, **named: lambda function: function
sys.meta_path.insert(0, Finder())
sys.dont_write_bytecode = True
{"vllm": vllm, "sglang": sglang}[ENGINE]()
