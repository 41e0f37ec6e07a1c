# Proves that a layer uses the experts that the table of balanced logits chooses.


def observe(ids, layer):
    """Compares the chosen experts with the table: at once or, in a capture, at each replay of the graph."""
    if layer.proved or layer.refused is not None:
        return
    try:
        if capturing(ids.device):
            _hold(ids, layer, None)
        elif _balanced.get(ids.device) and is_real(ids):
            _prove(ids, layer)
    except Exception as error:
        leave(layer, described(error))


def observe_places(ids, layer):
    """Observes an engine's choice as observe does. A token may have more places than experts, and a row that only
    pads the batch has negative ones. Returns whether the choice may be used; None if that is not known yet."""
    is_captured = capturing(ids.device)
    if is_captured and not _counts:
        return True
    ids = ids.reshape(-1, ids.shape[-1]).long()
    if is_captured:
        _hold(ids, layer, (ids >= 0).all(-1))
    elif _balanced.get(ids.device) and is_real(ids):
        wanted = _rows_of(layer, len(ids), None, ids.device)
        used = (ids >= 0).all(-1)
        ids, wanted = ids[used], wanted[used]
        if not (wanted.unsqueeze(-1) == ids.unsqueeze(-2)).any(-1).all():
            stands_for = _stand_for(ids[:, : layer.top_k], wanted, layer) if layer.renumbered else False
            if not stands_for:
                return stands_for
        layer.proved = len(ids) > 0
    return True


def _stand_for(ids, wanted, layer):
    """Returns whether each number stands for one expert: all tokens with the number must belong to that expert.
    Returns None with too few tokens, if not each number occurs twice."""
    if len(ids) < 2 * period(layer):
        return None
    by_number = torch.zeros(len(ids), int(ids.max()) + 1, device=ids.device).scatter_(1, ids, 1.0)
    by_expert = torch.zeros(len(ids), layer.experts, device=ids.device).scatter_(1, wanted, 1.0)
    return torch.equal((by_number.T @ by_expert).max(-1)[0], by_number.sum(0))


def observe_scores(scores, layer):
    """Observes scores as observe does: the chosen experts have the highest scores, or the only ones that are not
    zero. A mask of fewer experts proves nothing."""
    if layer.proved or layer.refused is not None:
        return
    try:
        is_captured = capturing(scores.device)
        if is_captured or _balanced.get(scores.device) and is_real(scores):
            ids = scores.topk(layer.top_k, -1)[1]
            decisive = (scores != 0).sum(-1) >= layer.top_k
            if is_captured:
                _hold(ids, layer, decisive)
            elif bool(decisive.all()):
                _prove(ids, layer)
    except Exception as error:
        leave(layer, described(error))


def _prove(ids, layer):
    ids = ids.reshape(-1, layer.top_k).long()
    wanted = _rows_of(layer, len(ids), None, ids.device)
    if torch.equal(ids.sort(-1)[0], wanted.sort(-1)[0]):
        layer.proved = True
    elif not layer.renumbered:
        leave(layer, "the experts did not get the balanced tokens")


def _hold(ids, layer, decisive):
    """Makes the device count choices while the layer is balanced, and those that are not the table's. Only the
    `decisive` choices count."""
    if not _counts:
        return
    numbers = numbers_of(layer, ids.device)
    ids = ids.reshape(-1, ids.shape[-1])
    try:
        wanted = _rows_of(layer, len(ids), None, ids.device)
    except Unbalanced:  # the table has too few rows, so the logits were not balanced either
        return
    # True for each expert that the table of balanced experts has for a token, but to which the token did not go.
    unlike = (wanted.unsqueeze(-1) != ids.unsqueeze(-2)).all(-1)
    if decisive is None:
        numbers.held.add_(numbers.on, alpha=unlike.numel())
    else:
        decisive = decisive.reshape(-1, 1)
        unlike = unlike & decisive
        numbers.held.addcmul_(decisive.sum(), numbers.on, value=layer.top_k)
    numbers.unlike.addcmul_(unlike.sum(), numbers.on)


def is_real(tensor):
    """Returns whether the tensor has values that can be read now."""
    return type(tensor) is torch.Tensor and tensor.numel() > 0 and can_be_read(tensor.device)


def can_be_read(device):
    return device.type != "meta" and not capturing(device)


@quietly
def judge():
    """Reads the devices' counts. A layer that chose other experts than the table's keeps its learned router from the
    next window on, also in captured graphs."""
    for (device, part), sheet in list(_sheets.items()):
        if not can_be_read(device):
            continue
        layers = _layers[part * _LAYERS : (part + 1) * _LAYERS]
        for layer, (_, held, unlike) in zip(layers, sheet[: len(layers)].tolist()):
            if unlike and not layer.renumbered:
                leave(layer, "%d of %d experts chosen in captured graphs were not the table's" % (unlike, held))
            elif held and not unlike:
                layer.proved = True
