"""engines.py JOB…: runs the engines' own source with fakes, each job in a separate process.

A job is a JSON list: [FOLDER, ENGINE, "window"?, "renamed" | "replaced" | "elsewhere"?, WAY…]. It prints a line `==
JOB` on standard error. For each way (code path) of a layer's logits, it prints a line of JSON with the job's number,
the experts, and the difference between their loads. `window`: before, in and after a window, with the experts and
weights of before and after. The other words change the source: `renamed` renames the logits, `replaced` chooses by
other logits than the given ones, and `elsewhere` chooses in another place.
"""

import hashlib
import importlib
import inspect
import json
import os
import sys
import types

import torch

import engine_parts
from engine_parts import Base, NAMES, no

EXPERTS, TOP_K, TOKENS, HIDDEN, GROUPS, TOP_GROUPS = 64, 8, 100, 16, 8, 4
CHANGES = {
    "renamed": [("", r"\brouter_logits\b", "gate_logits")],
    "replaced": [("", r"gating_output=router_logits", "gating_output=router_logits.cos()")],
    "elsewhere": [("", r"\b_compute_routing\b", "_choose"), ("", r"\bselect_experts\b", "choose_experts")],
}


def logits(of=TOKENS):
    return torch.randn(of, EXPERTS, generator=torch.Generator().manual_seed(3)) * 3


def bias():
    return torch.randn(EXPERTS, generator=torch.Generator().manual_seed(5)) * 3


def accepted(kind, **named):
    """Makes an instance. Passes only those of the arguments that the class's constructor has."""
    known = inspect.signature(kind.__init__).parameters
    return kind(**{name: value for name, value in named.items() if name in known})


class Gate(torch.nn.Linear):
    """A gate that counts its calls."""

    def __init__(self):
        super().__init__(HIDDEN, EXPERTS, bias=False)
        torch.nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(7))
        self.calls = 0

    def forward(self, hidden):
        self.calls += 1
        return super().forward(hidden), None


class Experts(Base):
    """A stand-in for the computation of experts: it records the experts that it is given. With `score`, it chooses
    them."""

    mk_owns_shared_expert = False
    moe_kernel = topk_indices_dtype = None
    supports_internal_mk = True

    def __init__(self, score=None):
        super().__init__()
        self.score, self.is_monolithic = score, score is not None

    def apply(self, layer, x, topk_weights, topk_ids, **others):
        self.seen = topk_weights, topk_ids
        return torch.zeros_like(x)

    def apply_monolithic(self, layer, x, router_logits, input_ids=None):
        self.seen = self.score(router_logits).topk(TOP_K, -1)
        return torch.zeros_like(x)


class RenamedExperts(Experts):
    def apply_monolithic(self, layer, x, gate_logits, input_ids=None):
        return Experts.apply_monolithic(self, layer, x, gate_logits)


class Routed(Base):
    """A stand-in for the object that holds the experts' weights in newer releases."""

    def __init__(self, method):
        super().__init__()
        self.quant_method = method
        self._ensure_moe_quant_config_init = self.ensure_moe_quant_config_init = lambda: None

    def forward_monolithic(self, x, input_ids=None, **its_logits):
        return self.quant_method.apply_monolithic(layer=self, x=x, input_ids=input_ids, **its_logits)

    def forward_modular(self, x, topk_weights, topk_ids, **others):
        return self.quant_method.apply(layer=self, x=x, topk_weights=topk_weights, topk_ids=topk_ids)


VLLM = "vllm.model_executor.layers.fused_moe."


def vllm_entry():
    """Returns the class of a layer's runner, and the name of its method through which the layer is called."""
    for module, owner, entry in (("runner.default_moe_runner", "DefaultMoERunner", "forward_impl"),
                                 ("runner.moe_runner", "MoERunner", "_forward_impl"),
                                 ("layer", "FusedMoE", "forward_impl")):
        kind = getattr(importlib.import_module(VLLM + module), owner)
        if inspect.isclass(kind) and hasattr(kind, entry):
            return kind, entry
    raise LookupError("no runner")


def vllm(is_renamed):
    Runner, entry = vllm_entry()
    importlib.import_module(VLLM + "layer")
    router = lambda file: importlib.import_module(VLLM + "router." + file)
    naive = types.SimpleNamespace(
        dispatch_router_logits=lambda *given, **named: tuple(torch.cat([part] * 2) for part in given[:2]),
        combine=lambda hidden, *more: hidden[:TOKENS])
    sys.modules[Runner.__module__].get_ep_group = lambda: naive
    common = {"top_k": TOP_K, "global_num_experts": EXPERTS, "eplb_state": None, "renormalize": False}
    grouped = {"num_expert_group": GROUPS, "topk_group": TOP_GROUPS}

    def run(made_router=None, method=None, rank=None, gate=None, gathers=False, **of_router):
        kind = made_router or router("fused_topk_router").FusedTopKRouter
        method = method or Experts()
        method.supports_internal_mk = not gathers
        parallel = types.SimpleNamespace(
            dp_size=2, dp_rank=rank or 0, ep_rank=rank or 0, use_ep=rank is not None, use_all2all_kernels=False)
        config = types.SimpleNamespace(
            num_experts=EXPERTS, num_logical_experts=EXPERTS, moe_parallel_config=parallel, is_sequence_parallel=False,
            pcp_size=1, sp_size=1, dp_size=2 if gathers else 1, use_ep=rank is not None)
        parts = dict(
            vars(config), moe_config=config, router=accepted(kind, **{**common, **of_router}), routed_experts=Routed(method),
            quant_method=method, _quant_method=method, gate=gate, layer_name="layer", _fse_fuse_gate=False,
            shared_experts=None, _shared_experts=None, shared_experts_stream=None, use_dp_chunking=False,
            ensure_moe_quant_config_init=lambda: None, ensure_dp_chunking_init=lambda: None)
        # Some names in `parts` are read-only properties of the class. The subclass replaces these properties by
        # plain attributes, so that the object can have the values in `parts`.
        computed = {name: None for name in parts if isinstance(getattr(Runner, name, None), property)}
        made = object.__new__(type(Runner.__name__, (Runner,), computed))
        if isinstance(made, torch.nn.Module):
            torch.nn.Module.__init__(made)
        vars(made).update(parts)

        def call():
            hidden = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(9))
            given = {"layer": made.routed_experts, "hidden_states": hidden, "shared_input": None, "input_ids": None,
                     "shared_experts_input": None, "gate_logits" if is_renamed else "router_logits": logits()}
            method_of = getattr(made, entry)
            method_of(**{name: given[name] for name in inspect.signature(method_of).parameters})
            return tuple(part[:TOKENS] for part in method.seen)

        return call

    gate = Gate()
    biased = router("fused_topk_bias_router").FusedTopKBiasRouter
    in_groups = router("grouped_topk_router").GroupedTopKRouter
    ways = {
        "softmax": run(),
        "renormalized": run(renormalize=True),
        "sigmoid": run(scoring_func="sigmoid"),
        "bias": run(biased, e_score_correction_bias=bias(), scoring_func="sigmoid"),
        "grouped": run(in_groups, **grouped),
        "grouped bias": run(in_groups, e_score_correction_bias=bias(), scoring_func="sigmoid", renormalize=True, **grouped),
        "custom": run(router("custom_routing_router").CustomRoutingRouter, custom_routing_function=(
            lambda hidden_states, gating_output, topk, renormalize: torch.sigmoid(gating_output).topk(topk, -1))),
        "gate inside": run(gate=gate),
        "monolithic": run(method=(RenamedExperts if is_renamed else Experts)(lambda given: given.softmax(-1))),
        "rank 0": run(rank=0),
        "rank 1": run(rank=1),
        "gathered 0": run(rank=0, gathers=True),
        "gathered 1": run(rank=1, gathers=True),
    }
    # In some releases, `apply_monolithic` is an attribute of the object itself, which hides the method of the class.
    # The object here imitates such a release.
    by_object = (RenamedExperts if is_renamed else Experts)(lambda given: given.sigmoid())
    by_object.apply_monolithic = by_object.apply_monolithic
    ways["monolithic, chosen"] = run(method=by_object)
    return ways, gate


def sglang(is_renamed):
    topk = importlib.import_module("sglang.srt.layers.moe.topk")
    layer = importlib.import_module("sglang.srt.layers.moe.fused_moe_triton.layer")
    softmax, sigmoid = engine_parts.KERNELS.topk_softmax, engine_parts.KERNELS.topk_sigmoid
    topk.topk_softmax, topk.topk_sigmoid = softmax, sigmoid
    hidden = torch.zeros(TOKENS, HIDDEN)
    its_logits = lambda: {"gate_logits" if is_renamed else "router_logits": logits()}
    plain = {"top_k": TOP_K, "layer_id": 0, "is_draft": False, "renormalize": False, "routed_scaling_factor": 1.0,
             "use_grouped_topk": False, "correction_bias": None, "custom_routing_function": None, "num_expert_group": None,
             "topk_group": None, "apply_router_weight_on_input": False, "activation": "silu"}
    kinds = {
        "softmax": {},
        "renormalized": {"renormalize": True},
        "grouped": {"use_grouped_topk": True, "num_expert_group": GROUPS, "topk_group": TOP_GROUPS},
    }
    kinds["grouped bias"] = {**kinds["grouped"], "correction_bias": bias()}
    kinds["custom"] = {"custom_routing_function": (
        lambda hidden_states, gating_output, topk, renormalize: torch.sigmoid(gating_output).topk(topk, -1))}
    ways = {}
    if not inspect.isclass(getattr(topk, "TopK", None)):
        for owner, kind, made_of in (("FusedMoE", layer.FusedMoE, fused_experts), ("EPMoE", ep_experts(), ep_experts_of)):
            for name, of_kind in kinds.items():
                ways["%s %s" % (owner, name)] = made_of(kind, {**plain, **of_kind}, hidden, its_logits)
        return ways, None

    def run(entry, **of_topk):
        given = {**plain, **of_topk}
        more = given.pop("more", {})
        if hasattr(topk, "TopKOutputFormat"):
            given.setdefault("output_format", topk.TopKOutputFormat.STANDARD)
        made = accepted(topk.TopK, **given)
        block = torch.nn.Module()
        block.topk = made
        more = {**its_logits(), **more}
        return lambda: getattr(made, entry)(hidden, **more)

    def chosen(call):
        return lambda: call()[:2]

    for entry in ("forward_cuda", "forward_native", "forward_cpu"):
        for name, of_kind in kinds.items():
            ways["%s %s" % (entry, name)] = chosen(run(entry, **of_kind))
    moved = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(2)).int()
    ways["moved"] = chosen(run("forward_cuda", more={"expert_location_dispatch_info": lambda ids: moved[ids.long()]}))
    if hasattr(getattr(topk, "TopKOutputFormat", None), "BYPASSED"):
        given_on = run("forward_cuda", output_format=topk.TopKOutputFormat.BYPASSED)
        ways["bypassed"] = lambda: next(part for part in given_on()[1:] if isinstance(part, torch.Tensor)).topk(TOP_K, -1)
    eager = run("forward_native")
    compiled = []

    def compiles():
        if not compiled:
            eager()
            compiled.append(engine_parts.really_compile(eager, backend="eager", fullgraph=True))
        return compiled[0]()[:2]

    ways["compiled"] = compiles
    # With `exchanges`, each rank chooses experts for its own tokens only. Otherwise, the layer gathers the tokens of
    # all ranks first.
    for rank, exchanges in ((0, True), (1, True), (1, False)):
        name = "rank %d" % rank if exchanges else "gathered %d" % rank
        ways[name] = on_rank(rank, exchanges, chosen(run("forward_native")))
    return ways, None


def on_rank(rank, exchanges, call):
    attention = importlib.import_module("sglang.srt.layers.dp_attention")
    utils = importlib.import_module("sglang.srt.layers.moe.utils")

    def of_rank():
        attention._ENABLE_DP_ATTENTION_FLAG, attention._ATTN_DP_RANK = True, rank
        attention.get_flags = lambda: types.SimpleNamespace(dp=types.SimpleNamespace(enabled=True))
        attention.get_parallel = lambda: types.SimpleNamespace(attn_dp_rank=rank)
        utils.get_moe_a2a_backend = lambda: types.SimpleNamespace(is_none=lambda: not exchanges)
        return call()

    return of_rank


def fused_experts(kind, config, hidden, its_logits):
    """Makes a layer of experts that routes itself, with the engine's own way to compute the experts, up to the
    kernel."""
    layer = sys.modules[kind.__module__]
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    vars(made).update(config, reduce_results=False, tp_size=1, w13_weight=None, w2_weight=None)
    method = layer.UnquantizedFusedMoEMethod.__new__(layer.UnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(method)
    method.forward = method.forward_cuda
    vars(made)["quant_method"] = method
    seen = []

    def compute(hidden_states, topk_weights, topk_ids, **others):
        seen.append((topk_weights, topk_ids))
        return hidden_states

    def call():
        layer.fused_experts = compute
        made.forward(hidden, **its_logits())
        return seen[-1]

    return call


def ep_experts():
    return importlib.import_module("sglang.srt.layers.moe.ep_moe.layer").EPMoE


class Chosen(Exception):
    """Raised in place of the kernels that would compute the experts, because their result is not needed."""


def ep_experts_of(kind, config, hidden, its_logits):
    layer = sys.modules[kind.__module__]
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    vars(made).update(config, quant_method=object(), grouped_gemm_runner=object(), num_experts=EXPERTS)

    def stop(topk_ids, num_experts):
        raise Chosen(topk_ids)

    layer.run_moe_ep_preproess = stop

    def call():
        try:
            made.forward(hidden, **its_logits())
        except Chosen as chosen:
            return chosen.args[0].float(), chosen.args[0]
        raise AssertionError("it did not choose")

    return call


def spread(ids):
    loads = torch.bincount(ids.reshape(-1).long(), minlength=EXPERTS)
    return int(loads.max() - loads.min())


def digest(chosen):
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in chosen)).hexdigest()


def run(number, folder, engine, *words):
    change = next((word for word in words if word in CHANGES), None)
    engine_parts.install(folder, CHANGES.get(change, ()))
    ways, gate = {"vllm": vllm, "sglang": sglang}[engine](change == "renamed")
    router = sys.modules.get("_tllmprof_router")
    wanted = [way for way in ways if way in words] or list(ways)
    # The library looks for routers when a program builds a model, that is, assigns modules to other modules. This line
    # makes such an assignment.
    torch.nn.Module().child = torch.nn.Module()
    for way in wanted:
        call = ways[way]
        calls = gate.calls if gate else 0
        found = {"job": number, "way": way}
        chosen = call()
        if "window" in words:
            found["before"] = digest(chosen)
            if router is not None:
                router.switch(True, True)
            chosen = call()
            if router is not None:
                router.switch(False, True)
            found["behind"] = digest(call())
        ids = chosen[1]
        found.update(spread=spread(ids), ids=ids.tolist(), gates=gate.calls - calls if gate else 0)
        print(json.dumps(found), flush=True)


def main():
    torch.set_grad_enabled(False)
    for number, job in enumerate(sys.argv[1:]):
        print("==", job, file=sys.stderr, flush=True)
        child = os.fork()
        if child == 0:
            return run(number, *json.loads(job))
        if os.waitpid(child, 0)[1] != 0:
            sys.exit("it failed")


main()
