"""Torch modules that write down their own calls. A test compares these calls with the ranges that the library
makes.

At the start of each call that must have a range, the program prints a line `module NAME`."""

import ctypes
import gc
import os
import sys
import threading

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))
from py_ctypes import Driver

names = {}
captures = False


def report(module):
    if not captures and not torch.compiler.is_compiling():
        print("module", names.get(id(module), type(module).__name__))


class Linear(torch.nn.Linear):
    def forward(self, x):
        report(self)
        return super().forward(x)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(4, 8), Linear(8, 4)

    def forward(self, x):
        report(self)
        return self.down(torch.relu(self.up(x)))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x, raises=False):
        report(self)
        x = x + self.mlp(x)
        if raises:
            raise ValueError("in a layer")
        return x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.head = Linear(4, 2)

    def forward(self, x, raises=False):
        report(self)
        for layer in self.layers:
            x = layer(x, raises)
        return self.head(x)


def learn(model):
    names.update((id(module), name or type(model).__name__) for name, module in model.named_modules())


model = Model()
learn(model)
x = torch.ones(1, 4)
for _ in range(2):
    model(x)
try:
    model(x, raises=True)
except ValueError:
    pass
# The range of a model is named after the model's class, even if the call of the previous model has ended with an
# exception. The range of `mlp`, a part of a model that is called directly, keeps the name `layers.1.mlp`.
other = Mlp()
learn(other)
other(x)
model.layers[1].mlp(x)
# If a module is added to a model after the model's first call, the ranges of the module and its parts are named after
# their classes.
model.layers[1].mlp = Mlp()
model(x)
# Model calls in a hook, and in a second thread, have ranges, too.
def hook(module, args, result):
    other(x)


handle = model.head.register_forward_hook(hook)
thread = threading.Thread(target=model, args=(x,))
thread.start()
thread.join()
handle.remove()
# A new module may be at the address of a deleted module. The new module must count as a separate root (a module that no
# other module calls).
for _ in range(50):
    one = Linear(4, 4)
    names[id(one)] = "Linear"
    one(x)
    del one
gc.collect()
# While a thread captures a stream, the library makes no ranges for modules.
driver = Driver("libcuda.so.1")
assert driver.lib.cuStreamBeginCapture_v2(driver.stream, 0) == 0
captures = True
model(x)
captures = False
graph = ctypes.c_void_p()
assert driver.lib.cuStreamEndCapture(driver.stream, ctypes.byref(graph)) == 0
model(x)
# Each call of the compiled model has a range `Model`. The modules inside it have no ranges, because they are compiled.
compiled = torch.compile(model, backend="eager")
for _ in range(2):
    print("compiled Model")
    compiled(x)
