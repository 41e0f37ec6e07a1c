# The operators that replace a gate's results. They are opaque to torch.compile. Otherwise torch.compile would see that
# the results of the gate are not used, and would remove the gate's work.

# Tensors with three numbers for each layer on each device. The operators read and write these numbers when they run, so
# one captured graph can run both the learned and the balanced router. The numbers are: whether the router is balanced;
# how many chosen experts were compared with the table of balanced experts while the router was balanced; and how many
# of these differed. The key is the device and the index of a block of layers. Layers are added one by one, so there may
# be several blocks.
_sheets = {}
_LAYERS = 1024
_active = False
# For each device, true if the device is switched to balanced routing.
_balanced = {}
# True if the last switch left out a device because of a stream capture. Rust code reads this variable.
_behind = False
# True if the load of each expert is counted, which is needed only if the learned router also runs at times.
_counts = False

_layers = []
_library = None


class Layer:
    """A layer of experts whose router is replaced."""

    def __init__(self, kind, experts, top_k, groups, top_groups, part=0):
        self.name = "%s %d" % (kind, len(_layers))
        self.kind = (kind, experts, top_k, groups, top_groups, part)
        self.experts = experts
        self.top_k = top_k
        self.groups = groups
        self.top_groups = top_groups
        # Index of this process among the processes that have different tokens and share the experts. This index
        # selects the rows of the table of balanced logits.
        self.part = part
        self.number = len(_layers)
        self.calls = 0
        # By device, a pair of tensors. The first one has the number of tokens of each expert: its first half with the
        # learned router, its second half with the balanced router. The second tensor has the constant 1.
        self.loads = {}
        # By device, the layer's row of `_sheets`: whether the router is balanced (`on`), how many chosen experts were
        # compared with the table of balanced experts (`held`), and how many of these differed (`unlike`).
        self.numbers = {}
        self.begins()
        # True if only the logits decide the choice of experts, so that the load can be counted from the logits.
        self.by_logits = False
        _layers.append(self)

    def begins(self):
        # True once the layer was seen to use the experts that the table of balanced logits chooses.
        self.proved = False
        # Reason why the learned router is not replaced, or None.
        self.refused = None
        # True if the engine may renumber the experts, so that their numbers differ from the columns
        # of the logits.
        self.renumbered = False
        # Biases that the model adds to the scores of the layer's experts. They are zero while the
        # router is balanced.
        self.biases = ()
        # True if the experts that the layer chooses from balanced logits are compared with the table of balanced
        # experts before the layer uses them.
        self.is_tried = False
        with torch.inference_mode(False), torch.no_grad():
            # Reset the numbers that an earlier model may have left.
            for device, numbers in self.numbers.items():
                if not capturing(device):
                    numbers.on.fill_(_balanced[device])
                    numbers.held.zero_()
                    numbers.unlike.zero_()
                    settle(device)


class Life:
    """Its life is that of the gate and all of its copies; afterwards, another gate may use the layer. A pickled gate
    contains nothing of ours."""

    def __deepcopy__(self, known):
        return self

    def __copy__(self):
        return self

    def __reduce__(self):
        return int, ()


# Layers whose gates were freed, by the arguments of `layer_of`. A model that is built again reuses
# these layers.
_free = {}


def layer_of(kind, experts, top_k, groups, top_groups, part=0):
    """Returns a layer, and the object that its gate must hold."""
    with _lock:
        free = _free.get((kind, experts, top_k, groups, top_groups, part))
        layer = free.pop() if free else Layer(kind, experts, top_k, groups, top_groups, part)
    layer.part = part
    layer.begins()
    life = Life()
    weakref.finalize(life, _ends, layer).atexit = False
    return layer, life


def _ends(layer):
    _free.setdefault(layer.kind, []).append(layer)


class Numbers:
    """A layer's numbers on a device. `is_on` is `on` as a condition."""

    def __init__(self, row):
        self.on, self.held, self.unlike = row.unbind()
        # A boolean view of the lowest byte of `on`, so that operators can use it as a condition.
        self.is_on = row[:1].view(torch.bool)[0]


def numbers_of(layer, device):
    known = layer.numbers.get(device)
    if known is None:
        with _lock, torch.inference_mode(False), torch.no_grad():
            part, row = divmod(layer.number, _LAYERS)
            sheet = _sheets.get((device, part))
            if sheet is None:
                if capturing(device):
                    raise Unbalanced("its first call was in a stream capture")
                sheet = torch.zeros((_LAYERS, 3), dtype=torch.int64, device=device)
                sheet[:, 0].fill_(_balanced.setdefault(device, _active))
                settle(device)
                _sheets[(device, part)] = sheet
            known = layer.numbers[device] = Numbers(sheet[row])
    return known


def _in_child():
    """Resets the state in the child of a fork: another thread may have held the lock, and the counts are the
    parent's."""
    global _lock
    _lock = threading.RLock()
    _sheets.clear()
    _balanced.clear()
    for layer in _layers:
        layer.calls = 0
        layer.loads = {}
        layer.numbers = {}


os.register_at_fork(after_in_child=_in_child)


def quietly(function):
    """Makes an error in the function a warning, which does not reach the program. An exception from a signal handler
    does."""

    @functools.wraps(function)
    def careful(*args):
        try:
            return function(*args)
        except Exception as error:
            warn("the perfect router: %s" % described(error))

    return careful


@quietly
def switch(on, waits):
    """Switches to balanced routing, or back. `waits`: waits for the devices before and after, as routers may run on
    any stream. A repeated call switches the devices that were left out before."""
    global _active, _behind
    on = bool(on)
    is_first = _active != on
    if not is_first and all(state == on for state in list(_balanced.values())):
        _behind = False
        return
    _active, _behind = on, False
    if torch is None:
        return
    if _active:
        warn_once()
    with _lock, torch.inference_mode(False), torch.no_grad():
        for device in list(_balanced):
            if not is_first and _balanced[device] == on:
                continue
            if device.type != "cuda":
                _turn(device)
                continue
            if not waits or capturing(device):
                _behind = _behind or _balanced[device] != on
                if is_first:
                    warn("a stream capture is under way: the routers on %s are not switched" % device)
                continue
            with torch.cuda.device(device):
                torch.cuda.synchronize()
                _turn(device)
                torch.cuda.synchronize()


def _turn(device):
    # The device is already in the wanted state if its last switch was skipped because of a stream capture.
    if _balanced[device] != _active:
        _balanced[device] = _active
        for (where, _), sheet in _sheets.items():
            if where == device:
                sheet[:, 0].fill_(_active)
        switch_biases(device)
    for layer in _layers:
        if layer.refused is not None and device in layer.numbers:
            layer.numbers[device].on.zero_()


def leave(layer, why, say_so=None):
    """Makes the layer keep its learned router."""
    if layer.refused is None:
        layer.refused = why
        free_biases(layer)
        if say_so is not None:
            say_so()
        else:
            warn("%s keeps its learned router: %s" % (layer.name, why))


def _rows(logits):
    return logits.numel() // logits.shape[-1]


def _rows_of(layer, count, dtype, device):
    """Returns the table's rows for this number of tokens."""
    first = layer.part * count % period(layer) if layer.part else 0
    return table(first + count, layer, dtype, device)[first : first + count]


def _balanced_logits(logits, number):
    layer = _layers[number]
    layer.calls += 1
    if layer.refused is None and logits.numel():
        try:
            if _active and not layer.is_tried:
                warn_once()
            if layer.by_logits and _counts:
                _count(logits[..., : layer.experts].topk(layer.top_k, -1)[1], layer, logits.device, True)
            rows = _rows_of(layer, _rows(logits), logits.dtype, logits.device)
            own = logits[..., : layer.experts]
            # A gate may have more columns, for shared experts that are always chosen. The logits in these columns stay.
            mixed = torch.where(numbers_of(layer, logits.device).is_on, rows.view(own.shape), own)
            if own.shape == logits.shape:
                return mixed
            return torch.cat((mixed, logits[..., layer.experts :]), -1)
        except Exception as error:
            leave(layer, described(error))
    return logits.clone()


def _balanced_bias(bias, number):
    layer = _layers[number]
    if layer.refused is None:
        try:
            is_on = numbers_of(layer, bias.device).is_on
            return torch.where(is_on, torch.zeros((), dtype=bias.dtype, device=bias.device), bias)
        except Exception as error:
            leave(layer, described(error))
    return bias.clone()


def _seen(ids, number):
    """Observes and counts the chosen experts, and returns them unchanged."""
    layer = _layers[number]
    observe(ids, layer)
    try:
        if _counts:
            _count(ids, layer, ids.device, False)
    except Exception as error:
        leave(layer, described(error))
    return ids.clone()


def _chosen(ids, number):
    """Observes the chosen experts as _seen does, but does not count them."""
    observe(ids, _layers[number])
    return ids.clone()


def _scored(scores, number):
    """Observes the scores of experts, of which the highest are the chosen ones, and returns them unchanged."""
    observe_scores(scores, _layers[number])
    return scores.clone()


def _count(ids, layer, device, is_learned):
    loads = layer.loads.get(device)
    if loads is None:
        if capturing(device):
            return
        with torch.inference_mode(False), torch.no_grad():
            loads = (
                torch.zeros(2 * layer.experts, dtype=torch.int64, device=device),
                torch.ones(1, dtype=torch.int64, device=device),
            )
            settle(device)
            layer.loads[device] = loads
    tokens, one = loads
    chosen_ids = ids.reshape(-1).long()
    # Choices that are made while balanced routing is active (`on` is 1) are counted in the second
    # half of `tokens`. So the first half has only the load of the learned router.
    places = torch.add(chosen_ids, numbers_of(layer, device).on, alpha=layer.experts)
    tokens.scatter_add_(0, places, one.expand(len(chosen_ids)))


def described(error):
    return str(error) if isinstance(error, Unbalanced) else "%s: %s" % (type(error).__name__, str(error).split("\n")[0])


_warned = []


def warn_once():
    if not _warned and any(layer.refused is None for layer in _layers):
        _warned.append(True)
        warn("output is intentionally wrong: the routers are replaced")


def _balanced_grad(grad, number):
    """Passes the gradients of the learned router while it is in force; balanced logits have none."""
    layer = _layers[number]
    if layer.refused is None:
        try:
            own = grad[..., : layer.experts]
            is_on = numbers_of(layer, grad.device).is_on
            mixed = torch.where(is_on, torch.zeros((), dtype=grad.dtype, device=grad.device), own)
            return torch.cat((mixed, grad[..., layer.experts :]), -1)
        except Exception as error:
            leave(layer, described(error))
    return grad.clone()


def _remember(ctx, inputs, output):
    ctx.number = inputs[1]


def _backward(ctx, grad):
    return torch.ops.tllmprof.balanced_grad(grad, ctx.number), None


def _same_grad(ctx, grad):
    return grad, None


def define():
    """Defines the operators once torch is complete. Returns False if that is not possible."""
    global _library
    if _library is not None:
        return _library is not False
    _library = False
    if not hasattr(torch.library, "register_autograd"):
        warn("the perfect router needs PyTorch 2.4 or later: the routers stay as they are")
        return False
    library = torch.library.Library("tllmprof", "DEF")
    for schema, work in (
        ("balanced_logits(Tensor logits, int layer) -> Tensor", _balanced_logits),
        ("balanced_bias(Tensor bias, int layer) -> Tensor", _balanced_bias),
        ("balanced_grad(Tensor grad, int layer) -> Tensor", _balanced_grad),
        ("seen(Tensor ids, int layer) -> Tensor", _seen),
        ("chosen(Tensor ids, int layer) -> Tensor", _chosen),
        ("scored(Tensor scores, int layer) -> Tensor", _scored),
    ):
        library.define(schema)
        name = schema.split("(")[0]
        library.impl(name, work, "CompositeExplicitAutograd")
        torch.library.register_fake("tllmprof::" + name, lambda tensor, layer: torch.empty_like(tensor), lib=library)
        backward = {"balanced_logits": _backward, "balanced_bias": _backward, "scored": _same_grad}.get(name)
        if backward is not None:
            torch.library.register_autograd("tllmprof::" + name, backward, setup_context=_remember, lib=library)
        else:
            library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    _library = library
    return True
