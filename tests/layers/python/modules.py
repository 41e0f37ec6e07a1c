"""Steps of a model of modules, captured once and replayed, and of a single function. Each kernel has the name of the
layer that launches it. The outermost model's name is its class."""
import torch.nn.modules.module as modules
# This import must follow that of torch: whenever a module is imported, the library looks for torch, so it finds torch
# now.
from launches import captured, launch, run


class Part(modules.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self):
        launch(self.name)


class Block(modules.Module):
    def __init__(self, name):
        super().__init__()
        self.attn = Part(name + ".attn")
        self.mlp = Part(name + ".mlp")
        self.name = name

    def forward(self):
        self.attn()
        launch(self.name)
        attend(self.name + "/attend")
        self.mlp()


class Model(modules.Module):
    def __init__(self):
        super().__init__()
        self.first = Block("Model/first")
        self.second = Block("Model/second")

    def forward(self):
        self.first()
        self.second()
        launch("Model")


def attend(name):
    launch(name)


def sample():
    launch("sample")


run(captured(Model()), sample)
