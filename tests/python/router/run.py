"""run.py [NAME...]: runs small models with experts and prints a line of JSON for each.

This program knows nothing of tllmprof. Its own hooks take the experts from the gates' results.
"""

import ctypes
import hashlib
import json
import sys
import warnings

warnings.filterwarnings("ignore")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import models

TOKENS = (1, 7, 64, 1000)
_GATES = ("gate", "router")
_EXPERTS = ("experts",)


class Products(TorchDispatchMode):
    """Counts products of matrices with this number of columns."""

    def __init__(self, columns):
        super().__init__()
        self.columns = columns
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "linear") and result.shape[-1] == self.columns:
            self.count += 1
        return result


def blocks(model):
    for module in model.modules():
        gate = next((module._modules[name] for name in _GATES if module._modules.get(name) is not None), None)
        if gate is not None and any(module._modules.get(name) is not None for name in _EXPERTS):
            yield module, gate


def experts_of(result, count, top_k):
    """Returns the experts that a gate's results choose, and their weights if the gate returns them."""
    parts = result if isinstance(result, tuple) else (result,)
    ids = next((part for part in parts if not part.is_floating_point() and part.shape[-1] == top_k), None)
    weights = None
    if ids is not None:
        weights = next((p for p in parts if p.is_floating_point() and p.shape[-1] == top_k and top_k != count), None)
    else:
        scores = next(part for part in parts if part.shape[-1] == count)
        ids = scores.topk(top_k, -1)[1]
    return ids.reshape(-1, top_k), weights


def digest(tensor):
    tensor = tensor.contiguous()
    return hashlib.sha256(ctypes.string_at(tensor.data_ptr(), tensor.nbytes)).hexdigest()


def look(name):
    model = models.build(name)
    own = models.MODELS[name][1]
    count = own.get("num_local_experts") or own.get("num_experts") or own["n_routed_experts"]
    top_k = own["num_experts_per_tok"]
    seen = []
    gates = [gate for _, gate in blocks(model)]
    for gate in gates:
        gate.register_forward_hook(lambda gate, args, result: seen.append(result))
    found = {"model": name, "layers": len(gates), "gates": 0, "spread": 0, "kinds": [], "sums": []}
    logits = []
    with torch.no_grad():
        for tokens in TOKENS:
            torch.manual_seed(tokens)
            seen.clear()
            with Products(count) as products:
                logits.append(model(torch.randint(3, 256, (1, tokens))).logits)
            found["gates"] += len(seen)
            found["products"] = found.get("products", 0) + products.count
            for result in seen:
                ids, weights = experts_of(result, count, top_k)
                assert ids.sort(-1)[0].diff(dim=-1).all(), "an expert twice for a token"
                loads = torch.bincount(ids.reshape(-1), minlength=count)
                found["spread"] = max(found["spread"], int(loads.max() - loads.min()))
                if weights is not None:
                    sums = weights.float().sum(-1)
                    found["sums"] = sorted({*found["sums"], round(sums.min().item(), 3), round(sums.max().item(), 3)})
            parts = [p for result in seen for p in (result if isinstance(result, tuple) else (result,))]
            found["kinds"] += ["%s %s" % (part.dtype, tuple(part.shape)) for part in parts]
        found["logits"] = digest(torch.cat([part.reshape(-1) for part in logits]))
        torch._dynamo.reset()
        found["breaks"] = torch._dynamo.explain(models.build(name))(torch.randint(3, 256, (1, 13))).graph_break_count
    return found


if __name__ == "__main__":
    for name in sys.argv[1:] or models.MODELS:
        print(json.dumps(look(name)), flush=True)
