"""Prints how often torch's compiler breaks the graph of marked functions and modules, and how often it compiles."""

import torch
import torch._dynamo


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())

    def forward(self, x):
        return helper(self.blocks(x))


def helper(x):
    return torch.sin(x) + 1


def breaks(x):
    x = helper(x)
    print("", end="")
    return helper(x) * 2


def report(name, function):
    torch._dynamo.reset()
    explained = torch._dynamo.explain(function)(torch.ones(2, 4))
    print(name, "explained:", explained.graph_count, explained.graph_break_count, explained.op_count)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, backend="eager")
    for rows in (2, 2, 3, 3):
        compiled(torch.ones(rows, 4))
    counters = torch._dynamo.utils.counters
    print(name, "compiled:", dict(counters["stats"]), dict(counters["graph_break"]), dict(counters["frames"]))


torch.manual_seed(1)
model = Model()
report("model", model)
report("helper", helper)
report("breaks", breaks)
model.compile(backend="eager")
print("in place: %.4f" % model(torch.ones(2, 4)).sum().item())
