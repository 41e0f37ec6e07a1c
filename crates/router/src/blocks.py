# Finds the layers of experts in a model while the model is built, and replaces the results of their gates.

_GATES = ("gate", "router", "gating", "wg", "gate_proj_router", "router_gate")
_EXPERTS = ("experts", "moe_experts", "expert_mlps", "mlps", "input_linear")
# Engines whose blocks this file skips. `engines.py` replaces the routers of vLLM and SGLang, and TensorRT-LLM has a
# perfect router of its own.
_ENGINES = ("vllm", "sglang", "tensorrt_llm")

# Blocks (modules with a gate and experts) that are still being built, by `id()`. Each entry has a weak reference to
# the block, and the name of its gate.
_pending = {}
_gemms = _sums = frozenset()
_Exchange = None


def begin(active, counts):
    """Watches from here on how modules are registered in each other. torch.nn.modules.module is loaded, but torch may
    not be complete yet."""
    global _active, _counts
    _active, _counts = bool(active), bool(counts)
    sys.modules["torch.nn.modules.module"].register_module_module_registration_hook(registered)


def registered(parent, name, child):
    """Handles `parent.name = child`."""
    try:
        if child is not None:
            look_at_engines()
            block, gate = _pending.pop(id(child), (None, None))
            if block is not None and block() is child:  # the block's __init__ has returned
                attach(child, gate)
            if name in _GATES or name in _EXPERTS:
                _look(parent, name, child)
    except Exception as error:
        warn("%s is not looked at: %s" % (type(parent).__name__, described(error)))


def _look(parent, name, child):
    children = dict(parent._modules)
    children[name] = child
    gate = next((known for known in _GATES if children.get(known) is not None), None)
    if gate is None or all(children.get(known) is None for known in _EXPERTS):
        return
    if type(parent).__module__.split(".")[0] in _ENGINES:
        return
    key = id(parent)
    if key not in _pending or _pending[key][0]() is not parent:
        _pending[key] = (weakref.ref(parent, functools.partial(_forget, key)), gate)


def _forget(key, gone):
    if key in _pending and _pending[key][0] is gone:
        del _pending[key]


def _number(owners, names):
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def describe(gate, parent):
    """Returns experts, experts per token, groups, and groups per token."""
    owners = [gate, parent]
    owners += [owner.config for owner in owners if getattr(owner, "config", None) is not None]
    owners.append(getattr(parent, "experts", None))
    top_k = _number(
        owners,
        ("top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "topk", "moe_topk", "top_k_experts", "k"),
    )
    experts = _number(owners, ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"))
    rows = gate_rows(gate)
    if rows and (experts is None or rows < experts):
        experts = rows
    if top_k is None:
        name = type(gate).__name__.lower()
        top_k = next((k for k in (1, 2) if "top%d" % k in name or "top_%d" % k in name), None)
    groups = _number([gate, parent], ("n_group", "num_group", "n_groups", "num_expert_group")) or 1
    top_groups = _number([gate, parent], ("topk_group",)) or groups
    return experts, top_k, groups, top_groups


def gate_rows(gate):
    """Returns the number of outputs of the gate's only matrix."""
    weights = [weight for weight in gate.parameters() if weight.ndim == 2]
    return weights[0].shape[0] if len(weights) == 1 else None


def attach(parent, name):
    """Hooks a block's gate."""
    global torch
    gate = parent._modules.get(name)
    if gate is None or _known(gate) is not None:
        return
    torch = sys.modules["torch"]
    if not hasattr(torch, "library"):
        return
    label = "%s.%s" % (type(parent).__name__, name)
    if "Hash" in type(gate).__name__:
        warn("%s keeps its learned router: it routes by the tokens' numbers" % label)
        return
    experts, top_k, groups, top_groups = describe(gate, parent)
    if not experts or not top_k or top_k > experts:
        warn(
            "%s keeps its learned router: its experts (%s) and experts a token (%s) are unknown"
            % (label, experts, top_k)
        )
        return
    try:
        chosen(1, experts, top_k, groups, top_groups)
    except Unbalanced as error:
        warn("%s keeps its learned router: %s" % (label, error))
        return
    if not define():
        return
    _prepare()
    layer, life = layer_of(label, experts, top_k, groups, top_groups)
    gate.__dict__["_tllmprof"] = (_mark, layer.number, experts, top_k, gate_rows(gate) or experts)
    gate.__dict__["_tllmprof_life"] = life
    if type(gate).forward is torch.nn.Linear.forward:
        layer.by_logits = groups <= 1
        gate.register_forward_hook(Hook(_linear))
        _watch(parent, layer)
        # Before torch 2.6, the function mode (`_Choice`) that `_stand_in_block` adds breaks the graph of
        # torch.compile, so the block is not changed.
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
            parent.__dict__["_tllmprof"] = gate.__dict__["_tllmprof"]
            _stand_in_block(type(parent))
    else:
        stand_in(type(gate))
    if _may_become_several():
        _watch_ranks(parent, layer)


def _known(gate):
    """Returns the data about a gate: its layer's number, its experts, experts per token, and rows; None if it is not
    hooked."""
    known = gate.__dict__.get("_tllmprof")
    return known[1:] if known is not None and known[0] == _mark else None


class Hook:
    """A hook on one module. A model that is pickled with it can be loaded without this module: the hook does nothing
    there."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        return getattr, (contextlib.nullcontext(), "__exit__")


def _linear(gate, args, logits):
    known = _known(gate)
    if known is not None and isinstance(logits, torch.Tensor):
        return torch.ops.tllmprof.balanced_logits(logits, known[0])
    return None


def _watch(parent, layer):
    """Observes in the block's first call which experts it chooses from the gate's logits."""

    def mode():
        return _Watch(layer) if _active or any(map(capturing, layer.numbers)) else None

    _in_mode(parent, mode, lambda: layer.proved or layer.refused is not None)


def _in_mode(parent, mode, is_done, after_each=None):
    """Runs the block's calls that are not compiled in the mode that `mode` returns, unless that is None, until
    `is_done`. `after_each` gets the mode after each call."""
    handles = []
    of_thread = threading.local()

    def enters(block, args):
        # Do nothing once `is_done` returns true. `leaves` then removes the hooks from the original block, but copies
        # of the block keep them.
        if torch.compiler.is_compiling() or is_done():
            return
        if getattr(of_thread, "mode", None) is None:
            of_thread.mode = mode()
            if of_thread.mode is not None:
                of_thread.mode.__enter__()

    def leaves(block, args, result):
        if torch.compiler.is_compiling():
            return
        left, of_thread.mode = getattr(of_thread, "mode", None), None
        if left is not None:
            left.__exit__(None, None, None)
            if after_each is not None:
                after_each(left)
        if is_done():
            for handle in handles:
                handle.remove()

    handles.append(parent.register_forward_pre_hook(Hook(enters)))
    handles.append(parent.register_forward_hook(Hook(leaves), always_call=True))


def _stand_in_block(kind):
    """Makes a class of blocks report, in compiled code, which experts it chooses from the gate's logits."""
    own = kind.forward
    if hasattr(own, "_tllmprof"):
        return

    @functools.wraps(own)
    def forward(self, *args, **named):
        if torch.compiler.is_compiling():
            known = _known(self)
            if known is not None:
                with _Choice(known[0], known[1], known[2]):
                    return own(self, *args, **named)
        return own(self, *args, **named)

    forward._tllmprof = True
    kind.forward = forward


def stand_in(kind):
    """Replaces the forward method of a class of gates, so copies and later wrappers of a gate keep the
    replacement."""
    own = kind.forward
    if hasattr(own, "_tllmprof"):  # the base class is already replaced
        return

    def forward(self, *args, **named):
        known = _known(self)
        if known is None:
            return own(self, *args, **named)
        number, experts, top_k, rows = known
        mode = _Gate(number, experts, rows)
        with mode:
            result = own(self, *args, **named)
        if isinstance(result, torch.Tensor):
            # The mode (`_Gate`) has recognised none of the operators that produced these logits, so
            # replace the logits here.
            if not mode.is_done and result.ndim and result.is_floating_point() and result.shape[-1] == experts:
                result = torch.ops.tllmprof.balanced_logits(result, number)
            return result
        if isinstance(result, tuple):
            for place, part in enumerate(result):
                if (
                    isinstance(part, torch.Tensor)
                    and part.dtype in (torch.int64, torch.int32)
                    and part.ndim >= 2
                    and part.shape[-1] == top_k
                ):
                    seen = torch.ops.tllmprof.seen(part, number)
                    return result[:place] + (seen,) + result[place + 1 :]
            return _look_at_scores(result, mode, number, experts)
        return result

    forward.__wrapped__ = own
    forward.__qualname__ = own.__qualname__
    forward.__doc__ = own.__doc__
    forward._tllmprof = True
    kind.forward = forward


def _look_at_scores(result, mode, number, experts):
    """Observes the scores of a gate that returns scores and no experts."""
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling:
        layer = _layers[number]
        if layer.proved or layer.refused is not None:
            return result
    for place, part in enumerate(result):
        if (
            isinstance(part, torch.Tensor)
            and part is not mode.logits
            and part.ndim
            and part.is_floating_point()
            and part.shape[-1] == experts
        ):
            # In compiled code or during a capture, the values are not real data, so they cannot be checked now.
            if is_compiling or capturing(part.device):
                scored = torch.ops.tllmprof.scored(part, number)
                return result[:place] + (scored,) + result[place + 1 :]
            observe_scores(part, layer)
            if layer.proved or layer.refused is not None:
                break
    return result


def _prepare():
    """Makes the classes that need a complete torch."""
    global _Gate, _Watch, _Choice, _Exchange, _gemms, _sums
    if _gemms:
        return
    from torch.overrides import TorchFunctionMode

    tensor, functional = torch.Tensor, torch.nn.functional
    _gemms = frozenset(
        (functional.linear, torch.matmul, torch.mm, torch.addmm, tensor.matmul, tensor.mm, tensor.__matmul__)
    )
    _sums = frozenset((torch.add, tensor.add, tensor.add_, tensor.__add__, tensor.__radd__, tensor.__iadd__))

    class Gate(TorchFunctionMode):
        """The mode of a gate's forward. The first product with a column for each expert is the logits. A bias that is
        added to the scores by expert afterwards is a correction."""

        def __init__(self, number, experts, rows):
            super().__init__()
            self.number = number
            self.widths = (experts, rows)
            self.is_done = False
            self.logits = None

        def __torch_function__(self, function, types, args=(), kwargs=None):
            result_of = lambda *given: function(*given, **(kwargs or {}))
            if not self.is_done:
                result = result_of(*args)
                is_product = function in _gemms and isinstance(result, torch.Tensor) and result.ndim
                if is_product and result.shape[-1] in self.widths:
                    self.is_done = True
                    self.logits = torch.ops.tllmprof.balanced_logits(result, self.number)
                    return self.logits
                return result
            if function in _sums and len(args) == 2:
                scores, bias = args
                if (
                    isinstance(bias, torch.Tensor)
                    and isinstance(scores, torch.Tensor)
                    and scores.ndim > bias.ndim - 1
                    and bias.numel() in self.widths
                    and bias.numel() == scores.shape[-1]
                    and bias.ndim <= 2
                    and scores.ndim >= 2
                ):
                    return result_of(scores, torch.ops.tllmprof.balanced_bias(bias, self.number))
            return result_of(*args)

    class Watch(TorchFunctionMode):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function in (torch.topk, tensor.topk) and result[1].shape[-1] == self.layer.top_k:
                if args[0].shape[-1] == self.layer.experts:
                    observe(result[1], self.layer)
            return result

    class Choice(TorchFunctionMode):
        """Does the same as Watch in compiled code."""

        def __init__(self, number, experts, top_k):
            super().__init__()
            self.number, self.experts, self.top_k = number, experts, top_k

        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function in (torch.topk, tensor.topk):
                values, ids = result
                if ids.shape[-1] == self.top_k and args[0].shape[-1] == self.experts:
                    return torch.return_types.topk((values, torch.ops.tllmprof.chosen(ids, self.number)))
            return result

    _Gate, _Watch, _Choice, _Exchange = Gate, Watch, Choice, _exchange_mode()


@quietly
def loads():
    """Records the learned routers' loads so far."""
    if torch is None:
        return
    judge()
    for layer in _layers:
        tokens = None
        for device, (counted, _) in list(layer.loads.items()):
            if not can_be_read(device):
                return
            here = counted[: layer.experts].tolist()
            tokens = here if tokens is None else [a + b for a, b in zip(tokens, here)]
        if tokens is not None and any(tokens):
            keep(layer.number, layer.name, tuple(tokens))


@quietly
def report(uses_cuda):
    """Logs the lines at the end of the process."""
    if not _layers:
        if uses_cuda:
            say("perfect router: no router of a mixture of experts was met: nothing was replaced")
        return
    done = [layer for layer in _layers if layer.refused is None and layer.calls]
    idle = [layer for layer in _layers if layer.refused is None and not layer.calls]
    left = [layer for layer in _layers if layer.refused is not None]
    calls = sum(layer.calls for layer in done)
    unproved = sum(not layer.proved for layer in done)
    say(
        "perfect router: %d layers, %d calls (those in replayed graphs not counted)%s%s%s"
        % (
            len(done),
            calls,
            unproved and ", %d not proved" % unproved or "",
            idle and ", %d never called" % len(idle) or "",
            left and ", %d left as they were" % len(left) or "",
        )
    )
