"""captured.py [compiled] [disobeys]: ten steps of expert blocks of three small models. Each step replays a substitute
for a captured graph, or calls a model that is compiled as a whole.

`disobeys`: the second layer of each model chooses experts by logits that the library has not replaced. Prints a line of
JSON for each step: a digest of the blocks' results, and for each layer if the gate's logits are those of a table, and
how many of the experts with the highest logits did not get the token.
"""

import importlib
import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fixtures"))
import models
import run
from py_ctypes import Driver

# Three kinds of gates: Mixtral's gate returns the chosen experts, and Llama 4's gate returns their scores. Jamba's gate
# returns plain logits, and the block around the gate chooses the experts from them.
CLASSES = {"mixtral": "MixtralTopKRouter", "llama4": "Llama4Router", "jamba": "JambaSparseMoeBlock"}
# For each layer, a pair: the gate's logits, and the chosen experts. With the program's argument `disobeys`, some layers
# choose by other logits.
chose = []


class Graph(TorchDispatchMode):
    """A substitute for a captured graph: the device's operators are recorded once with the memory that they use, and
    run again in it without Python. Like in a capture, nothing may wait for a value. Operators written in Python are
    recorded by their parts."""

    WAIT = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.calls = []
        self.router = sys.modules.get("_tllmprof_router")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        if function.namespace == "tllmprof":
            with self:
                return getattr(self.router, "_" + name)(*args, **kwargs)
        if name in self.WAIT:
            raise RuntimeError("%s in a capture" % name)
        result = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, result))
        return result

    def capture(self, work):
        if self.router is None:
            with self:
                return work()
        own, self.router.capturing = self.router.capturing, lambda device: True
        try:
            with self:
                return work()
        finally:
            self.router.capturing = own

    def replay(self):
        for function, args, kwargs, recorded in self.calls:
            again = function(*args, **kwargs)
            pairs = zip(again, recorded) if isinstance(again, (tuple, list)) else ((again, recorded),)
            for one, memory in pairs:
                if isinstance(one, torch.Tensor) and one.data_ptr() != memory.data_ptr():
                    memory.copy_(one)


def stand_in(name, kind):
    """Makes a class record the experts that it chooses. If requested, it chooses by its own logits."""
    linear = torch.nn.functional.linear
    if name == "jamba":
        own = kind.route_tokens_to_experts

        def route_tokens_to_experts(self, hidden, logits):
            learned = linear(hidden, self.router.weight) if hasattr(self, "disobeys") else logits
            result = own(self, hidden, learned)
            chose.append((logits, result[0]))
            return result

        kind.route_tokens_to_experts = route_tokens_to_experts
        return
    own_forward = kind.forward

    def forward(self, hidden):
        result = own_forward(self, hidden)
        logits = result[1] if name == "llama4" else result[0]
        ids = logits.topk(self.top_k, -1)[1] if name == "llama4" else result[2]
        if hasattr(self, "disobeys"):
            learned = linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
            scores, ids = learned.softmax(-1).topk(self.top_k, -1)
            result = (torch.zeros_like(logits).scatter_(1, ids, scores), logits) if name == "llama4" else (logits, scores, ids)
        chose.append((logits, ids))
        return result

    kind.forward = forward


def lost(logits, ids):
    wanted = logits.topk(ids.shape[-1], -1)[1]
    return sum(len(set(a) - set(b)) for a, b in zip(wanted.tolist(), ids.tolist()))


def build(name):
    module = importlib.import_module("transformers.models.%s.modeling_%s" % (name, name))
    kind = getattr(module, CLASSES[name])
    stand_in(name, kind)
    model = models.build(name)
    # With this implementation of experts, the shapes of tensors do not depend on the chosen experts. So a graph can be
    # replayed with other experts.
    model.config._experts_implementation = "batched_mm"
    blocks = list(run.blocks(model))
    if "disobeys" in sys.argv:
        next(part for part in blocks[-1] if isinstance(part, kind)).disobeys = True
    return [block for block, _ in blocks]


def main():
    all_blocks = [build(name) for name in CLASSES]
    given = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0))

    def work(given):
        made = []
        for blocks in all_blocks:
            now = given
            for block in blocks:
                result = block(now)
                now = now + (result[0] if isinstance(result, tuple) else result).view(now.shape)
            made.append(now)
        return torch.cat(made)

    with torch.no_grad():
        work(given)
        chose.clear()
        graph, driver, result = Graph(), Driver("libcuda.so.1"), None
        if "compiled" in sys.argv:
            work = torch.compile(work, fullgraph=True)
        else:
            result = graph.capture(lambda: work(given))
        driver.capture()
        for _ in range(10):
            driver.step()
            if "compiled" in sys.argv:
                chose.clear()
                result = work(given)
            else:
                graph.replay()
            print(json.dumps({
                "result": run.digest(result),
                "tables": [bool((logits.abs() == 10).all()) for logits, _ in chose],
                "lost": [lost(*one) for one in chose],
            }), flush=True)


main()
