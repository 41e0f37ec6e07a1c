# The operators that take the place of a gate's results. Each is opaque to torch.compile: the gate's own work would
# else be found to be of no use, and be left out.

# Whether routers are balanced: a number on each device, which the operators read when they run, so that one captured
# graph does either.
_flags = {}
_active = False
# Loads are counted: where the learned router runs, too, now and then.
_counts = False

_layers = []
_library = None


class Layer:
    """A layer of experts whose router is replaced."""

    def __init__(self, name, experts, top_k, groups, top_groups):
        self.name = name
        self.experts = experts
        self.top_k = top_k
        self.groups = groups
        self.top_groups = top_groups
        self.number = len(_layers)
        self.calls = 0
        # Its experts have been seen to be the table's.
        self.proved = False
        # Why its learned router stays.
        self.refused = None
        # By device: tokens of each expert, first those of the learned router, then those of the balanced one.
        self.loads = {}
        # The logits decide alone, so that they tell the load.
        self.by_logits = False
        _layers.append(self)


def flag(device):
    known = _flags.get(device)
    if known is None:
        if capturing(device):
            raise Unbalanced("its first call was in a stream capture")
        with torch.inference_mode(False), torch.no_grad():
            known = _flags[device] = torch.full((), _active, dtype=torch.bool, device=device)
    return known


def switch(on, waits):
    """Balances from here on, or not. `waits`: the devices are made idle first and last, for what runs on any stream."""
    global _active
    _active = bool(on)
    if torch is None:
        return
    if _active:
        tell_once()
    with torch.inference_mode(False), torch.no_grad():
        for device, known in list(_flags.items()):
            if device.type != "cuda":
                known.fill_(_active)
                continue
            if not waits or capturing(device):
                warn("a stream capture is under way: the routers on %s are not switched" % device)
                continue
            with torch.cuda.device(device):
                torch.cuda.synchronize()
                known.fill_(_active)
                torch.cuda.synchronize()


def leave(layer, why):
    """The layer keeps its learned router."""
    if layer.refused is None:
        layer.refused = why
        warn("%s keeps its learned router: %s" % (layer.name, why))


def _rows(logits):
    return logits.numel() // logits.shape[-1]


def _balanced_logits(logits, number):
    layer = _layers[number]
    layer.calls += 1
    if layer.refused is None and logits.numel():
        try:
            if _active:
                tell_once()
            if layer.by_logits and _counts:
                _count(logits[..., : layer.experts].topk(layer.top_k, -1)[1], layer, logits.device, True)
            rows = table(_rows(logits), layer, logits.dtype, logits.device)[: _rows(logits)]
            own = logits[..., : layer.experts]
            # A gate may have columns for experts that are always chosen, too.
            mixed = torch.where(flag(logits.device), rows.view(own.shape), own)
            if own.shape == logits.shape:
                return mixed
            return torch.cat((mixed, logits[..., layer.experts :]), -1)
        except Exception as error:
            leave(layer, told(error))
    return logits.clone()


def _balanced_bias(bias, number):
    layer = _layers[number]
    if layer.refused is None:
        try:
            return torch.where(flag(bias.device), torch.zeros((), dtype=bias.dtype, device=bias.device), bias)
        except Exception as error:
            leave(layer, told(error))
    return bias.clone()


def _seen(ids, number):
    """The experts that were chosen, as they are."""
    layer = _layers[number]
    try:
        if layer.refused is None:
            prove(ids, layer)
        if _counts:
            _count(ids, layer, ids.device, False)
    except Exception as error:
        leave(layer, told(error))
    return ids.clone()


def prove(ids, layer):
    """On the first call outside a capture: the experts that were chosen are those of the table."""
    if layer.proved or not _active or not ids.numel() or capturing(ids.device):
        return
    ids = ids.reshape(-1, layer.top_k).long()
    rows = table(len(ids), layer, torch.float32, ids.device)[: len(ids)]
    wanted = rows.topk(layer.top_k, -1)[1]
    if torch.equal(ids.sort(-1)[0], wanted.sort(-1)[0]):
        layer.proved = True
    else:
        leave(layer, "the experts did not get the balanced tokens")


def _count(ids, layer, device, is_learned):
    loads = layer.loads.get(device)
    if loads is None:
        if capturing(device):
            return
        with torch.inference_mode(False), torch.no_grad():
            loads = layer.loads[device] = (
                torch.zeros(2 * layer.experts, dtype=torch.int64, device=device),
                torch.ones(1, dtype=torch.int64, device=device),
            )
    tokens, one = loads
    chosen_ids = ids.reshape(-1).long()
    # What the logits tell is the learned router's choice; where it is not in force, nobody's.
    row = flag(device).long() * layer.experts
    tokens.scatter_add_(0, chosen_ids + row, one.expand(len(chosen_ids)))


def told(error):
    return str(error) if isinstance(error, Unbalanced) else "%s: %s" % (type(error).__name__, str(error).split("\n")[0])


_told = []


def tell_once():
    if not _told and any(layer.refused is None for layer in _layers):
        _told.append(True)
        warn("output is intentionally wrong: the routers are replaced")


def define():
    """Makes the operators, once torch is whole."""
    global _library
    if _library is not None:
        return
    library = torch.library.Library("tllmprof", "DEF")
    like = getattr(torch.library, "register_fake", None) or torch.library.impl_abstract
    for schema, work in (
        ("balanced_logits(Tensor logits, int layer) -> Tensor", _balanced_logits),
        ("balanced_bias(Tensor bias, int layer) -> Tensor", _balanced_bias),
        ("seen(Tensor ids, int layer) -> Tensor", _seen),
    ):
        name = library.define(schema)
        name = schema.split("(")[0]
        library.impl(name, work, "CompositeExplicitAutograd")
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        like("tllmprof::" + name, lambda tensor, layer: torch.empty_like(tensor), lib=library)
    _library = library
