# Engines whose routers are no modules of their own: the logits are replaced where they are handed to the routing.


class _Point:
    """Where an engine hands logits over: a method, by its module and class, with a parameter `router_logits`, and what
    its source has to hold for it to be the one that is known."""

    def __init__(self, module, owner, methods, holds, describe):
        self.module, self.owner, self.methods, self.holds, self.describe = module, owner, methods, holds, describe


def _vllm(runner, width):
    """Experts, experts a token, groups, groups a token, part, the bias that is added to scores, of a MoERunner."""
    router, config = runner.router, runner.moe_config
    if getattr(router, "hash_indices_table", None) is not None:
        raise Unbalanced("it routes by the tokens' numbers")
    if getattr(router, "zero_expert_type", None) is not None:
        raise Unbalanced("it has experts that do nothing")
    experts = getattr(config, "num_logical_experts", None) or config.num_experts
    if width < experts:
        raise Unbalanced("its logits are of %d of %d experts" % (width, experts))
    parallel = getattr(config, "moe_parallel_config", None)
    # Logits that were gathered from all ranks are the same on each of them.
    part = 0
    if getattr(parallel, "use_ep", False) and not getattr(runner, "do_naive_dispatch_combine", False):
        if getattr(config, "is_sequence_parallel", False):
            part = parallel.ep_rank
        elif getattr(parallel, "dp_size", 1) > 1:
            part = parallel.dp_rank
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is None:
        bias = getattr(runner.routed_experts, "e_score_correction_bias", None)
    return (
        experts,
        router.top_k,
        getattr(router, "num_expert_group", None) or 1,
        getattr(router, "topk_group", None) or 1,
        part,
        bias,
    )


def _sglang(topk, width):
    """As _vllm, of a TopK."""
    config = topk.topk_config
    is_grouped = config.use_grouped_topk
    part = 0
    attention = sys.modules.get("sglang.srt.layers.dp_attention")
    backend = sys.modules.get("sglang.srt.layers.moe.utils")
    try:
        # With an all-to-all each rank routes its own tokens; without, they are gathered first.
        if attention.is_dp_attention_enabled() and not backend.get_moe_a2a_backend().is_none():
            part = attention.get_attention_dp_rank()
    except Exception:  # not set up, or otherwise in this version: a part of 0 is balanced on its own
        part = 0
    return (
        width,
        config.top_k - config.num_shared_topk_slots,
        config.num_expert_group if is_grouped else 1,
        config.topk_group if is_grouped else 1,
        part,
        config.correction_bias,
    )


_POINTS = [
    _Point(
        "vllm.model_executor.layers.fused_moe.runner.moe_runner",
        "MoERunner",
        ("_apply_quant_method",),
        (
            "self.router.select_experts(",
            "router_logits=router_logits,",
            "self.routed_experts.forward_monolithic(",
            "self.router.prepare_monolithic_logits(router_logits)",
        ),
        _vllm,
    ),
    _Point(
        "sglang.srt.layers.moe.topk",
        "TopK",
        ("forward_native", "forward_cuda"),
        ("self.topk_config", "= select_experts(", "router_logits=router_logits,", "self._resolve_routing_inputs("),
        _sglang,
    ),
]
# Engines without a point that is known: by a module that only they have.
_OLDER = {
    "vllm.model_executor.layers.fused_moe.layer": (
        "vLLM",
        "vllm.model_executor.layers.fused_moe.runner.moe_runner",
    ),
}
# Biases that are zero while routers are balanced, with what they are else.
_biases = {}


def look_at_engines():
    """Stands in the engines' points, once their modules are there. Called for each module that a model is built of."""
    for point in list(_POINTS):
        module = sys.modules.get(point.module)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _POINTS.remove(point)
            _stand_at(point, module)
    for name in list(_OLDER):
        engine, known = _OLDER[name]
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            del _OLDER[name]
            if known not in sys.modules and hasattr(module, "FusedMoE"):
                warn("%s: the routers stay as they are: this version has no %s" % (engine, known))


def _stand_at(point, module):
    global torch
    torch = sys.modules["torch"]
    try:
        owner = getattr(module, point.owner)
        for name in point.methods:
            why = _unlike(owner, name, point.holds)
            if why:
                raise Unbalanced("%s.%s %s" % (point.owner, name, why))
        if define():
            for name in point.methods:
                setattr(owner, name, _standing(getattr(owner, name), point))
    except Exception as error:
        warn("%s: the routers stay as they are: %s" % (point.module.split(".")[0], described(error)))


def _unlike(owner, name, holds):
    """Why a method is not the one that is known."""
    method = owner.__dict__.get(name)
    if method is None:
        return "is not there in this version"
    if "router_logits" not in inspect.signature(method).parameters:
        return "has no router_logits in this version"
    source = "".join(inspect.getsource(method).split())
    lacks = [text for text in holds if "".join(text.split()) not in source]
    return "is not the one that is known: no %s" % lacks[0] if lacks else None


def _standing(own, point):
    names = list(inspect.signature(own).parameters)
    place = names.index("router_logits") - 1

    @functools.wraps(own)
    def method(self, *args, **named):
        logits = named.get("router_logits")
        if logits is None and len(args) > place:
            logits = args[place]
        if isinstance(logits, torch.Tensor) and logits.ndim == 2:
            known = self.__dict__.get("_tllmprof")
            if known is None or known[0] != _mark:
                if torch.compiler.is_compiling():
                    return own(self, *args, **named)
                known = _enlist(self, logits, point)
            if known[1] is not None:
                logits = torch.ops.tllmprof.balanced_logits(logits, known[1])
                if "router_logits" in named:
                    named["router_logits"] = logits
                else:
                    args = args[:place] + (logits,) + args[place + 1 :]
        result = own(self, *args, **named)
        ids = getattr(result, "topk_ids", None)
        if ids is not None and not torch.compiler.is_compiling():
            _confirm(ids, self.__dict__.get("_tllmprof"))
        return result

    return method


def _confirm(ids, known):
    layer = _layers[known[1]] if known is not None and known[1] is not None else None
    if layer is not None and ids.shape[-1] == layer.top_k:
        observe(ids, layer)


def _enlist(owner, logits, point):
    """Makes a layer of what has a point, at its first call: when its weights are there."""
    label = "%s.%s" % (point.module.split(".")[0], type(owner).__name__)
    number = None
    try:
        experts, top_k, groups, top_groups, part, bias = point.describe(owner, logits.shape[-1])
        top_groups = top_groups or groups
        chosen(1, experts, top_k, groups, top_groups)
        layer, life = layer_of(label, experts, top_k, groups, top_groups, part)
        layer.by_logits = groups <= 1 and bias is None
        # By where the experts are.
        layer.renumbered = True
        owner.__dict__["_tllmprof_life"] = life
        if bias is not None:
            _keep_bias(bias)
        number = layer.number
    except Exception as error:
        warn("%s keeps its learned router: %s" % (label, described(error)))
    known = owner.__dict__["_tllmprof"] = (_mark, number)
    return known


def _keep_bias(bias):
    """Kernels read a bias where it lies: it is zero while the routers are balanced."""
    if capturing(bias.device):
        raise Unbalanced("its first call was in a stream capture")
    with _lock, torch.inference_mode(False), torch.no_grad():
        if id(bias) not in _biases:
            _biases[id(bias)] = (bias, bias.detach().clone())
            if _active:
                bias.detach().zero_()


def switch_biases(device):
    """Has the biases on a device be what they have to be."""
    for bias, learned in list(_biases.values()):
        if bias.device == device:
            if _active:
                learned.copy_(bias.detach())
                bias.detach().zero_()
            else:
                bias.detach().copy_(learned)
