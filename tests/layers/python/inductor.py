"""Steps of models that Inductor has compiled: one as a whole, one from its `forward` on, one layer by layer. They run
on the CPU, where an operator launches a kernel named after the module that calls the operator. The steps are captured
once and replayed, and also called directly. The models have nothing to fuse, because fusing needs a C++ compiler."""
import ctypes
import sys

sys.path.pop(0)  # removes the script's folder from the path, because it has a fake torch
ctypes.CDLL("libcupti.so.13")  # loaded first, because torch brings a different CUPTI
import torch

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from launches import captured, launch, run


@torch.library.custom_op("own::launch", mutates_args=())
def launched(x: torch.Tensor, name: str) -> torch.Tensor:
    launch(name)
    return x.clone()


@launched.register_fake
def _(x, name):
    return torch.empty_like(x)


class Part(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.name = name

    def forward(self, x):
        return launched(self.linear(x), self.name)


class Layer(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.attn = Part(name + ".attn")
        self.mlp = Part(name + ".mlp")
        self.name = name

    def forward(self, x):
        return launched(self.mlp(self.attn(x)), self.name)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer("Model/layers.%d" % number) for number in range(3))
        self.head = torch.nn.Linear(8, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


whole = torch.compile(Model().eval())
forward = Model().eval()
forward.forward = torch.compile(forward.forward)
layers = Model().eval()
for layer in layers.layers:
    layer.compile()
x = torch.randn(4, 8)


def call():
    for model in (whole, forward, layers):
        model(x)


with torch.no_grad():
    call()
    run(captured(call), call)
