"""graph_programs.py NAME: loops in PyTorch that compile, load code or capture CUDA graphs in the steady state, and
loops without a fault (programs.txt)."""
import ctypes
import itertools
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time

import torch
import torch._dynamo
import triton
import triton.language as tl
from torch import nn

from steps import main, program, steps

DEVICE, HIDDEN, LAYERS, TOKENS, VOCABULARY = "cuda", 4096, 24, 2048, 32000
EACH = 4  # a fault occurs in one step of EACH
torch.set_grad_enabled(False)


def dense(layers=LAYERS, hidden=HIDDEN):
    """Returns a model whose layers each keep the GPU busy for about 0.15 ms, if its input has TOKENS tokens."""
    with torch.device(DEVICE):
        blocks = [nn.Sequential(nn.Linear(hidden, hidden, bias=False), nn.GELU()) for _ in range(layers)]
        return nn.Sequential(*blocks).to(torch.bfloat16).eval()


def batch(tokens=TOKENS, hidden=HIDDEN):
    return torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)


def sampled(output):
    """Returns a step's tokens on the host, so it waits for the GPU."""
    return output[:64].argmax(-1).tolist()


def capture(function, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = function()
    return graph, output


def new_constants():
    """Yields a number in each step, and another one after EACH steps. The numbers begin at the current time in
    milliseconds and repeat only after an hour, so caches on the disk hardly ever contain the code that is compiled for them."""
    first = time.time_ns() // 1_000_000 % (1 << 22) + 1
    for _, step in zip(steps(), itertools.count()):
        yield first + step // EACH


# ---- programs that torch.compile compiles again and again


def allow_recompiles():
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 20


class Positions(nn.Module):
    position = 0

    def forward(self, x):
        return torch.sin(x + self.position) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1)


def add_positions(compiled, x):
    return compiled(x)


@program
def position_attribute():
    """Changes an int attribute of a compiled module. torch.compile takes such attributes for constants."""
    allow_recompiles()
    net, x, positions = dense(), batch(), Positions()
    compiled = torch.compile(positions, backend="aot_eager")
    for _, step in zip(steps(), itertools.count()):
        positions.position = step // EACH
        sampled(add_positions(compiled, net(x)))


def attend_to_cache(query, keys, values):
    scores = query @ keys.transpose(-1, -2) * query.shape[-1] ** -0.5
    return torch.softmax(scores.float(), -1).to(values.dtype) @ values


def decode_at_length(compiled, query, keys, values, length):
    return compiled(query, keys[:, :length], values[:, :length])


@program
def growing_sequence():
    """Compiles attention with inductor for a new length of the cache in every EACH-th step."""
    allow_recompiles()
    net, x = dense(), batch()
    query = torch.randn(64, 8, 128, device=DEVICE, dtype=torch.bfloat16)
    keys, values = (torch.randn(64, 8192, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    compiled = torch.compile(attend_to_cache, dynamic=False)
    for _, step in zip(steps(), itertools.count()):
        net(x)
        sampled(decode_at_length(compiled, query, keys, values, 256 + 8 * (step // EACH % 900))[:, 0])


def add_adapters(x, adapters):
    for adapter in adapters:
        x = x + (x[:, :16].to(adapter.dtype) @ adapter).to(x.dtype)
    return x


def run_adapters(compiled, x, adapters):
    return compiled(x, adapters)


@program
def adapter_precisions():
    """Passes 12 adapters, each in one of two precisions, to a compiled function. Each new mix compiles it again."""
    allow_recompiles()
    net, x = dense(), batch()
    kinds = [[torch.randn(16, HIDDEN, device=DEVICE, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
             for _ in range(12)]
    compiled = torch.compile(add_adapters, dynamic=False, backend="aot_eager")
    for _, step in zip(steps(), itertools.count()):
        mix = step // EACH
        sampled(run_adapters(compiled, net(x), [pair[mix >> place & 1] for place, pair in enumerate(kinds)]))


def new_processors(request):
    """Returns new functions for a request's logits. Their number and their order depend on the request."""
    def cool(logits):
        return logits / 0.7

    def clip(logits):
        return logits.clamp(-30, 30)

    def penalise(logits):
        return logits - 0.1 * logits.relu()

    kinds = (cool, clip, penalise)
    return [kinds[request // 3 ** place % 3] for place in range(4 + request % 4)]


def process_logits(logits, processors):
    for processor in processors:
        logits = processor(logits)
    return logits


def run_processors(compiled, logits, processors):
    return compiled(logits, processors)


@program
def logits_processors():
    allow_recompiles()
    net, x = dense(), batch()
    compiled = torch.compile(process_logits, dynamic=False, backend="aot_eager")
    for _, step in zip(steps(), itertools.count()):
        if step % EACH == 0:
            processors = new_processors(step // EACH)
        sampled(run_processors(compiled, net(x), processors))


# ---- programs that compile or load kernels


@triton.jit
def scale_kernel(source, target, count, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(target + places, tl.load(source + places, mask=inside) * FACTOR, mask=inside)


def scale_by_triton(source, target, factor):
    count = source.numel()
    scale_kernel[(triton.cdiv(count, 1024),)](source, target, count, FACTOR=factor, BLOCK=1024)


def values_to_scale():
    """Returns the input and the output of the kernels that are compiled."""
    source = torch.rand(64, VOCABULARY, device=DEVICE)
    return source, torch.empty_like(source)


@program
def triton_constants():
    net, x, (source, target) = dense(), batch(), values_to_scale()
    for factor in new_constants():
        net(x)
        scale_by_triton(source, target, factor)
        sampled(target)


def apply_formula(source, constant):
    formula = f"template <typename T> T formula_{constant}(T x) {{ return x * T({constant}) + T(1); }}"
    return torch.cuda.jiterator._create_jit_fn(formula)(source)


@program
def jiterator_formulas():
    net, x, (source, _) = dense(), batch(), values_to_scale()
    for constant in new_constants():
        net(x)
        sampled(apply_formula(source, constant))


CUPY_KERNEL = """
extern "C" __global__ void scale(const float* source, float* target, int count) {
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) target[place] = source[place] * %d.0f;
}
"""


def build_raw_kernel(cupy, constant):
    kernel = cupy.RawKernel(CUPY_KERNEL % constant, "scale")
    kernel.compile()
    return kernel


@program
def cupy_kernels():
    import cupy
    net, x, (source, target) = dense(), batch(), values_to_scale()
    count, built = source.numel(), None
    arrays = cupy.asarray(source), cupy.asarray(target)
    for constant in new_constants():
        if constant != built:
            kernel, built = build_raw_kernel(cupy, constant), constant
        net(x)
        kernel(((count + 255) // 256,), (256,), (*arrays, cupy.int32(count)))
        sampled(target)


PTX = """
.version 7.8
.target sm_%d
.address_size 64
.visible .entry scale(.param .u64 data)
{
    .reg .b64 %%rd<4>;
    .reg .b32 %%r<2>;
    .reg .f32 %%f<3>;
    ld.param.u64 %%rd0, [data];
    cvta.to.global.u64 %%rd1, %%rd0;
    mov.u32 %%r0, %%tid.x;
    mul.wide.u32 %%rd2, %%r0, 4;
    add.s64 %%rd3, %%rd1, %%rd2;
    ld.global.f32 %%f0, [%%rd3];
    add.f32 %%f1, %%f0, 0f%08X;
    st.global.f32 [%%rd3], %%f1;
    ret;
}
"""


def path_of_ptxas():
    bundled = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "ptxas")
    return bundled if os.access(bundled, os.X_OK) else shutil.which("ptxas")


def assemble_kernel(ptxas, folder, constant):
    """Returns the code of a kernel that adds `constant`, by ptxas in a child process."""
    major, minor = torch.cuda.get_device_capability()
    source, target = os.path.join(folder, "scale.ptx"), os.path.join(folder, "scale.cubin")
    with open(source, "w") as text:
        text.write(PTX % (major * 10 + minor, struct.unpack("<I", struct.pack("<f", constant))[0]))
    subprocess.run([ptxas, f"-arch=sm_{major}{minor}", source, "-o", target], check=True)
    with open(target, "rb") as code:
        return code.read()


def check(error):
    if error:
        raise RuntimeError(f"the driver returned error {error}")


def load_kernel(driver, code):
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), code))
    check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"scale"))
    return module, kernel


@program
def ptxas_processes():
    ptxas, driver = path_of_ptxas(), ctypes.CDLL("libcuda.so.1")
    net, x, (source, _) = dense(), batch(), values_to_scale()
    address = ctypes.c_void_p(source.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    module, built = None, None
    with tempfile.TemporaryDirectory() as folder:
        for constant in new_constants():
            if constant != built:
                if module:
                    check(driver.cuModuleUnload(module))
                module, kernel = load_kernel(driver, assemble_kernel(ptxas, folder, constant))
                built = constant
            net(x)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            check(driver.cuLaunchKernel(kernel, 1, 1, 1, 256, 1, 1, 0, stream, arguments, None))
            sampled(source)


# ---- programs that capture graphs again and again


@program
def bucket_captures():
    """Captures a graph whenever the sequence's length reaches the next bucket, in every fifth step. It keeps no graph
    of a previous sequence."""
    net, x = dense(), batch()
    query = torch.randn(64, 8, 128, device=DEVICE, dtype=torch.bfloat16)
    keys, values = (torch.randn(64, 2048, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))

    def forward(length):
        return net(x)[:64, :8] + attend_to_cache(query, keys[:, :length], values[:, :length])[:, :, 0]

    buckets = range(64, 2049, 64)
    for length in buckets:
        sampled(forward(length))
    for _, step in zip(steps(), itertools.count()):
        if step % 5 == 0:
            length = buckets[step // 5 % len(buckets)]
            graph, output = capture(lambda: forward(length))
        graph.replay()
        sampled(output)


# ---- programs without a fault


@program
def graphs_by_size():
    """Replays one of four graphs, each captured for exactly the batch's size."""
    net, x, pool = dense(32), batch(4096), torch.cuda.graph_pool_handle()
    sizes, chosen = (4096, 3072, 2048, 1536), random.Random(1)
    for size in sizes:
        sampled(net(x[:size]))
    graphs = {size: capture(lambda: net(x[:size]), pool) for size in sizes}
    for _ in steps():
        graph, output = graphs[chosen.choice(sizes)]
        graph.replay()
        sampled(output)


@program
def compiled_model():
    compiled, x = torch.compile(dense()), batch(4096)
    for _ in range(10):
        sampled(compiled(x))
    for _ in steps():
        sampled(compiled(x))


@program
def training():
    with torch.set_grad_enabled(True):
        net, x, wanted = dense(12).train(), batch(8192), batch(8192)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
        for _ in steps():
            loss = nn.functional.mse_loss(net(x), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, outer, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.shortcut = nn.Identity()
        if channels != outer or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def residual_network():
    """Returns a network of the sizes of ResNet-50."""
    blocks, channels = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    blocks.append(nn.MaxPool2d(3, 2, 1))
    for inner, count, stride in (64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2):
        for number in range(count):
            blocks.append(Bottleneck(channels, inner, inner * 4, 1 if number else stride))
            channels = inner * 4
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return net.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()


@program
def convolutions():
    torch.backends.cudnn.benchmark = True
    net = residual_network()
    images = torch.randn(128, 3, 224, 224, device=DEVICE, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    for _ in range(3):
        sampled(net(images))
    for _ in steps():
        sampled(net(images))


if __name__ == "__main__":
    main()
