"""The part of CUDA that the examples need, through ctypes: one stream, and a kernel that keeps the GPU busy."""

import ctypes

BLOCKS, THREADS = 128, 1024

# The kernel: each thread reads the GPU's clock until `ns` nanoseconds have passed.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 state, .param .u64 ns)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [state];
    ld.param.u64 %rd2, [ns];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd3, %globaltimer;
    add.u64 %rd3, %rd3, %rd2;
again:
    mov.u64 %rd4, %globaltimer;
    setp.lt.u64 %p1, %rd4, %rd3;
    @%p1 bra again;
    st.global.u64 [%rd1], %rd4;
    ret;
}
"""


class Gpu:
    """The first GPU, with one stream and the kernel."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.stream, self.state = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"spin")
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuMemAlloc_v2", ctypes.byref(self.state), ctypes.c_size_t(64))

    def call(self, function, *arguments):
        error = getattr(self.driver, function)(*arguments)
        if error:
            raise RuntimeError(f"{function}: error {error}")

    def launch(self, ns):
        """Launches a kernel that keeps the GPU busy for `ns` nanoseconds, after the work that is
        already in the stream."""
        ns = ctypes.c_uint64(ns)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(self.state), ctypes.addressof(ns))
        grid = BLOCKS, 1, 1, THREADS, 1, 1, 0
        self.call("cuLaunchKernel", self.kernel, *grid, self.stream, parameters, None)

    def wait(self):
        """Waits until the stream has done all its work."""
        self.call("cuStreamSynchronize", self.stream)
