"""Steps of a model of modules, captured once and replayed, and of a function by itself. Each kernel is called like the layer that
launches it. The name of a model of its own is its class."""
import torch.nn.modules.module as modules
import ctypes  # torch is looked for when something is imported, as there always is behind it

cuda = ctypes.CDLL("libcuda.so.1")
handle = ctypes.c_void_p


def check(result):
    assert result == 0, result


def made(make, *args):
    it = handle()
    check(make(ctypes.byref(it), *args))
    return it


check(cuda.cuInit(0))
context = made(cuda.cuDevicePrimaryCtxRetain, 0)
check(cuda.cuCtxSetCurrent(context))
library = made(cuda.cuModuleLoadData, b"kernels")
memory = made(cuda.cuMemAlloc_v2, ctypes.c_size_t(64))
stream = made(cuda.cuStreamCreate, 1)
event = made(cuda.cuEventCreate, 2)
arguments = (handle * 1)(ctypes.addressof(memory))


def launch(name):
    kernel = made(cuda.cuModuleGetFunction, library, name.encode())
    check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, None))


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


model = Model()
check(cuda.cuStreamBeginCapture_v2(stream, 2))
model()
graph = handle()
check(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
executable = made(cuda.cuGraphInstantiateWithFlags, graph, ctypes.c_ulonglong(0))
check(cuda.cuGraphDestroy(graph))
for step in range(20):
    check(cuda.cuGraphLaunch(executable, stream))
    sample()
    check(cuda.cuEventRecord(event, stream))
    check(cuda.cuEventSynchronize(event))
print("done")
raise SystemExit(7)
