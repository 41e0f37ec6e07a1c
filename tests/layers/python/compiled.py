"""Steps of a model that a fake compiler has compiled. The code has the form of Inductor's. The steps are captured once
and replayed, and also called directly. Each kernel has the name of its expected layer."""
import re
import types

import torch.nn.modules.module as modules
from launches import captured, launch, run
from torch._inductor.compile_fx import compile_fx
from torch._inductor.output_code import CompiledFxGraph

WRAPPER = """
# kernel path: none
# Topologically Sorted Source Nodes: [norm_1], Original ATen: [aten.mul]
# Source node to ATen node mapping:
#   norm_1 => mul
fused_0 = Kernel()

def partition_0(args):
    # Topologically Sorted Source Nodes: [linear_1], Original ATen: [aten.mm]
    extern_kernels.mm("Model/model.layers.1.mlp")

class Runner:
    def call(self, args):
        args.clear()
        buf0 = empty("Model/model")
        # Topologically Sorted Source Nodes: [norm], Original ATen: [aten.mul]
        stream0 = get_raw_stream(0)
        fused_0.run("Model/model.layers.0.norm", stream=stream0)
        del buf0
        # Topologically Sorted Source Nodes: [norm, linear], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm("Model/model.layers.0.mlp")
        extern_kernels.mm("Model/model")
        # Topologically Sorted Source Nodes: [add, norm_1], Original ATen: [aten.add, aten.mul]
        fused_0.run("Model/model.layers.(0 + 1.norm)", stream=stream0)
        # Unsorted Source Nodes: [linear, linear_1], Original ATen: [aten.mm]
        buf1 = torch.ops.own.both.default("Model/model.layers.(0.mlp + 1.mlp)")
        # Topologically Sorted Source Nodes: [], Original ATen: []
        fused_0.run("Model/model", stream=stream0)
        # Topologically Sorted Source Nodes: [twice], Original ATen: [aten.add]
        fused_0.run("Model/model", stream=stream0)
        # Topologically Sorted Source Nodes: [unknown], Original ATen: [aten.add]
        fused_0.run("Model/model", stream=stream0)
        partition_0([])
        # Topologically Sorted Source Nodes: [add_1], Original ATen: [aten.add]
        fused_0.run("Model/model.layers.1", stream=stream0)
        return ()
"""


class Kernel:
    def run(self, name, stream):
        launch(name)


def of_ops(function):
    """Returns `function` in the form of an operator's default overload."""
    return types.SimpleNamespace(default=function)


NAMES = {
    "Kernel": Kernel,
    "empty": launch,
    "get_raw_stream": lambda device: 0,
    "extern_kernels": types.SimpleNamespace(mm=launch),
    "torch": types.SimpleNamespace(ops=types.SimpleNamespace(own=types.SimpleNamespace(both=of_ops(launch)))),
}


class Graph:
    """The compiler's input: operations with the modules that they are in, in the forms of several releases."""

    def __init__(self):
        self.graph = self
        self.nodes = [
            self.node("x", op="placeholder"),
            self.node("norm", "L['self'].layers.0", "L['self'].layers.0.norm"),
            self.node("linear", "L['self']._modules['layers']._modules['0']._modules['mlp']"),
            self.node("add", "L['self'].layers[0]"),
            self.node("norm_1", "L['self'].layers.1.norm", "L['self'].layers.1.norm.weights()"),
            self.node("linear_1", "L['self']._orig_mod.layers['1'].mlp"),
            self.node("add_1", "L['self'].layers.1"),
            self.node("unknown"),
            # Two nodes with the same name. Real graphs have such nodes if they contain another graph.
            self.node("twice", "L['self'].layers.0"),
            self.node("twice", "L['self'].layers.1"),
        ]

    def modules(self):
        return [self]

    @staticmethod
    def node(name, *paths, op="call_function"):
        stack = {str(place): (path, object) for place, path in enumerate(paths)}
        return types.SimpleNamespace(name=name, op=op, meta={"nn_module_stack": stack})


class Part(modules.Module):
    def forward(self):
        raise AssertionError("it was compiled")


class Layer(Part):
    def __init__(self):
        super().__init__()
        self.norm = Part()
        self.mlp = Part()


class Layers(Part):
    def __init__(self):
        super().__init__()
        setattr(self, "0", Layer())
        setattr(self, "1", Layer())


class Attention(modules.Module):
    """A part of the model that the compiler leaves uncompiled."""

    def __init__(self):
        super().__init__()
        self._graph = self.graph = Graph()
        del self.graph.nodes[2:], self.graph.nodes[0]

    def forward(self):
        launch("Model/model.layers.0.norm")


class Inner(modules.Module):
    def __init__(self):
        super().__init__()
        self.layers = Layers()
        self.compiled = compile_fx(Graph(), [1], code=(WRAPPER, "compiled", NAMES))
        # Imitates code that another process has compiled. The library does not know the modules of such code, so the
        # code's kernels get the enclosing scope.
        elsewhere = re.sub('"Model/[^"]*"', '"Model/model"', WRAPPER)
        self.found = CompiledFxGraph(elsewhere, "found", NAMES)
        self.found.post_compile([1], None, {})
        object.__setattr__(self, "attention", Attention())

    def forward(self):
        launch("Model/model")
        self.compiled([1])
        self.attention()
        self.found([1])


class Model(modules.Module):
    def __init__(self):
        super().__init__()
        self.model = Inner()
        self.head = Part()

    def forward(self):
        self.model()
        launch("Model")


model = Model()
run(captured(model), model)
