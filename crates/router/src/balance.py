"""The perfect router: all experts get the same number of tokens, plus or minus one.

The library concatenates the files of this folder and runs them as one module, once torch can be hooked. It calls
begin, switch, loads and report. It adds say(text) and warn(text), which log a line on standard error (warn also
records it), and keep(number, name, tokens), which records a layer's load.

Nothing here may harm the program: a layer that cannot be balanced keeps its learned router, with a warning.
"""

import contextlib
import functools
import inspect
import math
import os
import sys
import threading
import weakref

torch = None  # set when a model is built, because torch may not be complete when this file is loaded

# Initial number of rows of a table of balanced logits, one row for each token of a call. A call with more tokens makes
# the table grow.
_ROWS = 8192
# Logits of the chosen experts, and of all other experts. Their difference is large for every routing function, and both
# numbers are exact in every floating-point type.
_HIGH, _LOW = 10.0, -10.0

# Reentrant, because a signal handler may acquire the lock while the interrupted code holds it.
_lock = threading.RLock()
# Identifies this process. A module that was pickled in another process still has the mark of that process,
# so it is recognized as foreign.
_mark = os.urandom(8)
_tables = {}
# Tables of balanced logits that were replaced by larger ones. The old tables must not be freed because a captured
# graph may still read them.
_outgrown = []


class Unbalanced(Exception):
    """The reason why a layer cannot be balanced."""


def _spread(count):
    """Returns 0 to count - 1 in an order in which neighbours are far apart. A row of them is then also spread evenly
    over the parts of the experts that GPUs hold, whatever the number of GPUs."""
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(format(number, "0%db" % bits)[::-1], 2))


def _numbers(count):
    # The device is explicit because the program may have set another default device.
    return torch.tensor(_spread(count), device="cpu")


def _count_to(count):
    return torch.arange(count, device="cpu")


def chosen(rows, experts, top_k, groups=1, top_groups=1):
    """Returns the experts of each token, [rows, top_k]. A row does not depend on the number of rows. Over any number
    of rows, no expert occurs more than once more often than another. With `groups`, all experts of a token are in
    `top_groups` of them."""
    if groups <= 1 or top_groups >= groups:
        return _numbers(experts)[_count_to(rows * top_k) % experts].view(rows, top_k)
    in_group, each = experts // groups, top_k // top_groups
    if experts % groups or top_k % top_groups or each > in_group:
        raise Unbalanced(
            "%d of %d experts in %d of %d groups cannot be balanced" % (top_k, experts, top_groups, groups)
        )
    visit = _count_to(rows).view(rows, 1, 1) * top_groups + _count_to(top_groups).view(1, top_groups, 1)
    group = _numbers(groups)[visit % groups]
    place = (visit // groups * each + _count_to(each).view(1, 1, each)) % in_group
    expert = group * in_group + _numbers(in_group)[place]
    return expert.reshape(rows, top_k)


def period(layer):
    """Returns the number of rows after which they repeat."""
    if layer.groups <= 1 or layer.top_groups >= layer.groups:
        return layer.experts // math.gcd(layer.experts, layer.top_k)
    in_group, each = layer.experts // layer.groups, layer.top_k // layer.top_groups
    visits = layer.groups * (in_group // math.gcd(in_group, each))
    return visits // math.gcd(visits, layer.top_groups)


def table(rows, layer, dtype, device):
    """Returns at least `rows` rows of logits that choose balanced experts, [rows, experts], or, without a dtype, of
    the experts, [rows, top_k]. A table must be made before a capture needs it."""
    key = (layer.experts, layer.top_k, layer.groups, layer.top_groups, dtype, device)
    known = _tables.get(key)
    if known is not None and known.shape[0] >= rows:
        return known
    if capturing(device):
        raise Unbalanced("a stream capture came before a call with as many tokens (%d)" % rows)
    with _lock, torch.inference_mode(False), torch.no_grad():
        known = _tables.get(key)
        if known is not None and known.shape[0] >= rows:
            return known
        count = max(_ROWS, 1 << (rows - 1).bit_length())
        made = chosen(count, layer.experts, layer.top_k, layer.groups, layer.top_groups)
        if dtype is not None:
            made = torch.full((count, layer.experts), _LOW, dtype=torch.float32, device="cpu").scatter_(1, made, _HIGH)
            # Prepare the table of the chosen experts, too, because a captured graph compares its choices with that
            # table.
            if _counts:
                table(rows, layer, None, device)
        made = made.to(dtype or made.dtype).to(device)
        if known is not None:
            _outgrown.append(known)
        settle(device)
        _tables[key] = made
        return made


def settle(device):
    """Waits for this stream, as another one may read the data next."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def capturing(device):
    """Returns whether the calling thread's stream is being captured into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
