# Balances the routers of engines in which a router is not a torch module. The logits are replaced when the engine's
# routing code passes them to the function that takes them.


class _Point:
    """The layers of experts in some releases of an engine. `entries`: methods of the class `owner` through which a
    layer is called. `takers`: the functions that take the logits inside such a call: an attribute of the layer and a
    method of its value, or a module (`module:`) and one of its functions. Without takers, the entries take the
    logits. There is no list of releases: a release matches if it has all of these, with a parameter `router_logits`,
    and if it chooses the experts with the highest logits. `renumbers`: experts may get other numbers than the columns
    of the logits."""

    def __init__(self, module, owner, entries, takers, describe, renumbers=False):
        self.module, self.owner, self.entries, self.takers = module, owner, entries, takers
        self.describe, self.renumbers = describe, renumbers
        self.engine = module.split(".")[0]


class _Bias:
    """A bias with a copy of its learned values. `is_cleared` is true while the bias is set to zero."""

    def __init__(self, bias):
        self.bias, self.learned, self.is_cleared = bias, bias.detach().clone(), False

    def clear(self):
        # A cleared bias has no learned values, so the copy must stay as it is.
        if not self.is_cleared:
            self.learned.copy_(self.bias.detach())
            self.bias.detach().zero_()
            self.is_cleared = True

    def restore(self):
        if self.is_cleared:
            # If the program has written other values in the meantime, such as new weights, these stay.
            values = self.bias.detach()
            values.copy_(torch.where(values.any(), values, self.learned))
            self.is_cleared = False


class _Call:
    """A call of a layer in this thread. `tokens`: the number of its tokens, if that is known."""

    def __init__(self, owner, point, tokens):
        self.owner, self.point, self.tokens = owner, point, tokens
        # `takes` is true while a function that takes the logits is running. `was_taken` is true once such a function
        # has run.
        self.takes = self.was_taken = False


def _vllm(runner, width, is_own):
    """Returns experts, experts per token, groups, groups per token, part, and biases that are added to scores, for a
    runner of experts. `is_own`: the logits are only of this rank's tokens."""
    router, config = runner.router, runner.moe_config
    if any(getattr(router, name, None) is not None for name in ("hash_indices_table", "_hash_indices_table")):
        raise Unbalanced("it routes by the tokens' numbers")
    if getattr(router, "zero_expert_type", None) is not None:
        raise Unbalanced("it has experts that do nothing")
    experts = getattr(config, "num_logical_experts", None) or config.num_experts
    if width < experts:
        raise Unbalanced("its logits are of %d of %d experts" % (width, experts))
    parallel = getattr(config, "moe_parallel_config", None)
    part = 0
    if is_own and getattr(parallel, "use_ep", False):
        if getattr(config, "is_sequence_parallel", False):
            part = parallel.ep_rank
        elif getattr(parallel, "dp_size", 1) > 1:
            part = parallel.dp_rank
    holders = (router, getattr(runner, "routed_experts", None))
    biases = [getattr(holder, name, None) for holder in holders for name in ("e_score_correction_bias", "bias_vl")]
    return (
        experts,
        router.top_k,
        getattr(router, "num_expert_group", None) or 1,
        getattr(router, "topk_group", None) or 1,
        part,
        biases,
    )


def _sglang(layer, width, is_own):
    """Returns the same as _vllm, for a TopK or for the experts themselves."""
    config = getattr(layer, "topk_config", layer)
    is_grouped = config.use_grouped_topk
    # Some of a token's `top_k` experts may be shared experts, to which all tokens go. The router
    # chooses only the remaining experts.
    shared = getattr(config, "num_shared_topk_slots", None)
    if shared is None:
        shared = getattr(config, "num_fused_shared_experts", None) or 0
    part = 0
    attention = sys.modules.get("sglang.srt.layers.dp_attention")
    backend = sys.modules.get("sglang.srt.layers.moe.utils")
    try:
        # The `part` selects the rows of the table of balanced logits that this rank uses. With an all-to-all, each
        # rank routes only its local tokens, so ranks get different parts. Without an all-to-all, the tokens
        # of all ranks are gathered first, and all ranks use part 0.
        if attention.is_dp_attention_enabled() and not backend.get_moe_a2a_backend().is_none():
            rank = getattr(attention, "get_attention_dp_rank", None)
            part = rank() if rank is not None else attention.get_parallel().attn_dp_rank
    except Exception:  # the rank is not known: use part 0
        part = 0
    return (
        width,
        config.top_k - shared,
        config.num_expert_group if is_grouped else 1,
        config.topk_group if is_grouped else 1,
        part,
        [config.correction_bias],
    )


_VLLM = "vllm.model_executor.layers.fused_moe."
_SGLANG = "sglang.srt.layers.moe."
# The functions of vLLM that take the logits. `_compute_routing` chooses the experts.
# `apply_monolithic` calls a kernel that chooses the experts itself.
_ROUTING = (("router", "_compute_routing"), ("quant_method", "apply_monolithic"), ("_quant_method", "apply_monolithic"))
_SELECT = ((_SGLANG + "topk:", "select_experts"),)
_POINTS = [
    _Point(_VLLM + "runner.moe_runner", "MoERunner", ("_forward_impl",), _ROUTING, _vllm),
    _Point(_VLLM + "runner.default_moe_runner", "DefaultMoERunner", ("forward_impl",), _ROUTING, _vllm),
    _Point(_VLLM + "layer", "FusedMoE", ("forward_impl",), _ROUTING, _vllm),
    _Point(_SGLANG + "topk", "TopK", ("forward_native", "forward_cuda", "forward_cpu"), (), _sglang, renumbers=True),
    _Point(_SGLANG + "fused_moe_triton.layer", "FusedMoE", ("forward",), _SELECT, _sglang, renumbers=True),
    _Point(_SGLANG + "ep_moe.layer", "EPMoE", ("forward",), _SELECT, _sglang, renumbers=True),
]
# For each engine, a module that is loaded late. If none of the engine's classes in `_POINTS` could be hooked once this
# module is loaded, a warning says that the engine's routers stay as they are.
_LAST = {"vllm": _VLLM + "layer", "sglang": _SGLANG + "fused_moe_triton.layer"}
# For each engine: None if its routers could be hooked, otherwise the reason why they could not.
_lacks = {}
_told = set()
# Biases that are set to zero while routers are balanced. The key is the bias's `id()`, and the value is a `_Bias`.
_biases = {}
# The calling thread's current call of a layer.
_now = threading.local()


def look_at_engines():
    """Hooks the engines' points once their modules are loaded. It runs for each module that a model is built of."""
    for point in [point for point in _POINTS if _is_whole(point.module)]:
        _POINTS.remove(point)
        _stand_at(point, sys.modules[point.module])
    for engine in [engine for engine, name in _LAST.items() if _is_whole(name)]:
        del _LAST[engine]
        why = _lacks.get(engine, "this version has no layers of experts that are known")
        if why is not None:
            _stays(engine, why)


def _is_whole(name):
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _stays(engine, why):
    if (engine, why) not in _told:
        _told.add((engine, why))
        warn("%s: the routers stay as they are: %s" % (engine, why))


def _stand_at(point, module):
    global torch
    torch = sys.modules["torch"]
    try:
        owner = getattr(module, point.owner, None)
        own = {name: owner.__dict__[name] for name in point.entries if name in getattr(owner, "__dict__", ())}
        if not own:
            return
        places = {name: _place_of_logits(method) for name, method in own.items()}
        for name in own if define() else ():
            entry = _entering(own[name], point) if point.takers else _with_balanced(own[name], places[name], point)
            setattr(owner, name, entry)
        _lacks[point.engine] = None
    except Exception as error:
        _lacks.setdefault(point.engine, described(error))


def _place_of_logits(function):
    names = list(inspect.signature(function).parameters)
    if "router_logits" not in names:
        raise Unbalanced("%s has no parameter router_logits" % function.__qualname__)
    return names.index("router_logits")


def _entering(own, point):
    """Returns the replacement of a layer's entry. During its call, the takers of the logits know the layer."""
    names = list(inspect.signature(own).parameters)
    place = names.index("hidden_states") - 1 if "hidden_states" in names else len(names)

    @functools.wraps(own)
    def entry(self, *args, **named):
        if torch.compiler.is_compiling():
            return own(self, *args, **named)
        states = named.get("hidden_states", args[place] if len(args) > place else None)
        call = _Call(self, point, len(states) if isinstance(states, torch.Tensor) else None)
        _find_takers(call)
        before, _now.call = getattr(_now, "call", None), call
        try:
            result = own(self, *args, **named)
        finally:
            _now.call = before
        if not call.was_taken and call.tokens:
            _stays(point.engine, "%s takes its logits elsewhere" % own.__qualname__)
        return result

    return entry


@quietly
def _find_takers(call):
    """Hooks the takers of the layer's logits, which may be other objects from now on."""
    for holder, name in call.point.takers:
        if holder.endswith(":"):
            where = sys.modules.get(holder[:-1])
        else:
            held = getattr(call.owner, holder, None)
            where = held if name in getattr(held, "__dict__", ()) else type(held)
        own = getattr(where, name, None)
        if own is None or hasattr(own, "_tllmprof"):
            continue
        try:
            _take(where, name, _with_balanced(own, _place_of_logits(own)))
        except Unbalanced as error:
            call.was_taken = True  # prevents a second warning
            _stays(call.point.engine, str(error))


def _take(where, name, taker):
    """Replaces a function, also in the other modules of its package that have imported it by name."""
    own = getattr(where, name)
    setattr(where, name, taker)
    if inspect.ismodule(where):
        package = where.__name__.split(".")[0] + "."
        for other, module in list(sys.modules.items()):
            if other.startswith(package) and getattr(module, "__dict__", {}).get(name) is own:
                setattr(module, name, taker)


def _with_balanced(own, place, point=None):
    """Returns the replacement of a taker, which passes balanced logits on. Without a point, the layer is that of the
    thread's current call."""

    @functools.wraps(own)
    def taker(*args, **named):
        logits = named.get("router_logits")
        if logits is None and len(args) > place:
            logits = args[place]
        if point is not None:
            call = _Call(args[0], point, None)
        else:
            call = None if torch.compiler.is_compiling() else getattr(_now, "call", None)
        if call is None or call.takes or not isinstance(logits, torch.Tensor) or logits.ndim != 2:
            return own(*args, **named)
        call.was_taken = True
        known = call.owner.__dict__.get("_tllmprof")
        if known is None or known[0] != _mark:
            if torch.compiler.is_compiling():
                return own(*args, **named)
            known = _enlist(call, logits)
        if known[1] is None:
            return own(*args, **named)
        balanced = torch.ops.tllmprof.balanced_logits(logits, known[1])
        call.takes = True
        try:
            if "router_logits" in named:
                result = own(*args, **dict(named, router_logits=balanced))
            else:
                result = own(*args[:place], balanced, *args[place + 1 :], **named)
            if torch.compiler.is_compiling() or may_go_on(result, balanced, _layers[known[1]], own.__qualname__):
                return result
            return own(*args, **named)
        finally:
            call.takes = False

    taker._tllmprof = True
    return taker


def may_go_on(result, logits, layer, taker):
    """Returns whether the routing's result agrees with the balanced logits. If it does not, the learned router
    stays."""
    if layer.proved or layer.refused is not None:
        return True
    try:
        ids = getattr(result, "topk_ids", None)
        if ids is None and type(result) is tuple:
            tensors = [part for part in result if isinstance(part, torch.Tensor)]
            ids = next((tensor for tensor in tensors if not tensor.is_floating_point()), None)
        if ids is not None:
            follows = observe_places(ids, layer)
            if follows is not False:
                return _goes_on(bool(follows))
            why = "%s chooses other experts than its logits say" % taker
        else:
            # The function passes the logits on to a kernel that chooses the experts. The logits must be unchanged.
            names = [name for name in getattr(result, "_fields", ()) if name.endswith("router_logits")]
            if all(getattr(result, name) is logits for name in names):
                return _goes_on(True)
            why = "%s gives other logits on than it was given" % taker
    except Exception as error:
        why = "%s: %s" % (taker, described(error))
    leave(layer, why, lambda: _stays(layer.name.split(".")[0], why))
    return False


def _goes_on(is_balanced):
    if is_balanced and _active:
        warn_once()
    return is_balanced


def _enlist(call, logits):
    """Makes a layer for the owner of a point at its first call, when its weights are loaded."""
    owner, point = call.owner, call.point
    label = "%s.%s" % (point.engine, type(owner).__name__)
    number = None
    try:
        # `is_own` is false if the logits were gathered from all ranks. Then every rank has the same
        # logits.
        is_own = call.tokens is not None and len(logits) <= call.tokens
        experts, top_k, groups, top_groups, part, biases = point.describe(owner, logits.shape[-1], is_own)
        biases = [bias for bias in biases if bias is not None]
        top_groups = top_groups or groups
        chosen(1, experts, top_k, groups, top_groups)
        layer, life = layer_of(label, experts, top_k, groups, top_groups, part)
        layer.by_logits = groups <= 1 and not biases
        layer.renumbered, layer.is_tried = point.renumbers, True
        owner.__dict__["_tllmprof_life"] = life
        for bias in biases:
            _keep_bias(bias)
        layer.biases = biases
        number = layer.number
    except Exception as error:
        why = "%s keeps its learned router: %s" % (label, described(error))
        if why not in _told:
            _told.add(why)
            warn(why)
    known = owner.__dict__["_tllmprof"] = (_mark, number)
    return known


def _keep_bias(bias):
    """Sets a bias to zero while the routers are balanced. Kernels read it from its own memory."""
    if capturing(bias.device):
        raise Unbalanced("its first call was in a stream capture")
    with _lock, torch.inference_mode(False), torch.no_grad():
        if id(bias) not in _biases:
            kept = _biases[id(bias)] = _Bias(bias)
            # The device may not be in the state that `_active` says, because its last switch was skipped.
            if _balanced.setdefault(bias.device, _active):
                kept.clear()


def switch_biases(device):
    """Sets the biases on a device to zero or to their learned values."""
    for kept in list(_biases.values()):
        if kept.bias.device == device:
            if _active:
                kept.clear()
            else:
                kept.restore()


def free_biases(layer):
    """Restores the biases of a layer that keeps its learned router."""
    for bias in layer.biases:
        kept = _biases.pop(id(bias), None) if not capturing(bias.device) else None
        if kept is not None:
            with _lock, torch.inference_mode(False), torch.no_grad():
                kept.restore()
