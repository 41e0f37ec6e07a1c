"""Launches kernels through ctypes, and runs the steps of a program that exits with 7."""
import ctypes

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
    """Launches a kernel with this name, which is its expected scope."""
    kernel = made(cuda.cuModuleGetFunction, library, name.encode())
    check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, None))


def captured(call):
    """Captures the kernels that `call` launches. Returns a function that replays them."""
    check(cuda.cuStreamBeginCapture_v2(stream, 2))
    call()
    graph = handle()
    check(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
    executable = made(cuda.cuGraphInstantiateWithFlags, graph, ctypes.c_ulonglong(0))
    check(cuda.cuGraphDestroy(graph))
    return lambda: check(cuda.cuGraphLaunch(executable, stream))


def run(*calls):
    for step in range(20):
        for call in calls:
            call()
        check(cuda.cuEventRecord(event, stream))
        check(cuda.cuEventSynchronize(event))
    print("done")
    raise SystemExit(7)
