/* The part of CUDA that the examples need: one stream, and a kernel that keeps the GPU busy for a given time. The
 * driver, libcuda.so.1, is opened at run time. */
#ifndef GPU_H
#define GPU_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BLOCKS = 128, THREADS = 1024 };

typedef int CUresult;

static CUresult (*module_load)(void **, const void *);
static CUresult (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, void *, void **, void **);
static CUresult (*stream_synchronize)(void *);
static CUresult (*mem_alloc)(unsigned long long *, size_t);
static CUresult (*mem_free)(unsigned long long);
static CUresult (*copy_in)(unsigned long long, const void *, size_t);
static CUresult (*copy_in_async)(unsigned long long, const void *, size_t, void *);
static CUresult (*copy_out)(void *, unsigned long long, size_t);
static CUresult (*begin_capture)(void *, int);
static CUresult (*end_capture)(void *, void **);
static CUresult (*instantiate)(void **, void *, unsigned long long);
static CUresult (*launch_graph)(void *, void *);
static CUresult (*destroy_graph)(void *);
static CUresult (*destroy_executable)(void *);
static void *kernel, *stream;
static unsigned long long state;

/* The kernel: each thread reads the GPU's clock until `ns` nanoseconds have passed. */
static const char PTX[] = ".version 7.0\n"
                          ".target sm_70\n"
                          ".address_size 64\n"
                          ".visible .entry spin(.param .u64 state, .param .u64 ns)\n"
                          "{\n"
                          "    .reg .pred %p<2>;\n"
                          "    .reg .b64 %rd<5>;\n"
                          "    ld.param.u64 %rd1, [state];\n"
                          "    ld.param.u64 %rd2, [ns];\n"
                          "    cvta.to.global.u64 %rd1, %rd1;\n"
                          "    mov.u64 %rd3, %globaltimer;\n"
                          "    add.u64 %rd3, %rd3, %rd2;\n"
                          "again:\n"
                          "    mov.u64 %rd4, %globaltimer;\n"
                          "    setp.lt.u64 %p1, %rd4, %rd3;\n"
                          "    @%p1 bra again;\n"
                          "    st.global.u64 [%rd1], %rd4;\n"
                          "    ret;\n"
                          "}\n";

static void check(const char *what, CUresult error)
{
    if (error != 0) {
        fprintf(stderr, "%s: error %d\n", what, error);
        exit(1);
    }
}

static void *find(void *driver, const char *name)
{
    void *function = driver != NULL ? dlsym(driver, name) : NULL;
    if (function == NULL) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(1);
    }
    return function;
}

/* Prepares a GPU for the calling process. `number` selects the GPU; on a machine with fewer
 * GPUs, several numbers select the same one. */
static void gpu_start(int number)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
#define FUNCTION(name, ...) CUresult (*name)(__VA_ARGS__) = find(driver, #name)
    FUNCTION(cuInit, unsigned);
    FUNCTION(cuDeviceGetCount, int *);
    FUNCTION(cuDeviceGet, int *, int);
    FUNCTION(cuDevicePrimaryCtxRetain, void **, int);
    FUNCTION(cuCtxSetCurrent, void *);
    FUNCTION(cuModuleGetFunction, void **, void *, const char *);
    FUNCTION(cuStreamCreate, void **, unsigned);
    module_load = find(driver, "cuModuleLoadData");
    launch_kernel = find(driver, "cuLaunchKernel");
    stream_synchronize = find(driver, "cuStreamSynchronize");
    mem_alloc = find(driver, "cuMemAlloc_v2");
    mem_free = find(driver, "cuMemFree_v2");
    copy_in = find(driver, "cuMemcpyHtoD_v2");
    copy_in_async = find(driver, "cuMemcpyHtoDAsync_v2");
    copy_out = find(driver, "cuMemcpyDtoH_v2");
    begin_capture = find(driver, "cuStreamBeginCapture_v2");
    end_capture = find(driver, "cuStreamEndCapture");
    instantiate = find(driver, "cuGraphInstantiateWithFlags");
    launch_graph = find(driver, "cuGraphLaunch");
    destroy_graph = find(driver, "cuGraphDestroy");
    destroy_executable = find(driver, "cuGraphExecDestroy");

    int device, count;
    void *context, *module;
    check("cuInit", cuInit(0));
    check("cuDeviceGetCount", cuDeviceGetCount(&count));
    check("cuDeviceGet", cuDeviceGet(&device, count > 0 ? number % count : 0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", module_load(&module, PTX));
    check("cuModuleGetFunction", cuModuleGetFunction(&kernel, module, "spin"));
    check("cuStreamCreate", cuStreamCreate(&stream, 1 /* non-blocking */));
    check("cuMemAlloc_v2", mem_alloc(&state, 64));
}

/* Loads the code of the kernel once more. */
static inline void gpu_load(void)
{
    void *module;
    check("cuModuleLoadData", module_load(&module, PTX));
}

/* Launches a kernel that keeps the GPU busy for `ns` nanoseconds, after the work that is already in the stream. */
static void gpu_launch(uint64_t ns)
{
    void *parameters[] = {&state, &ns};
    check("cuLaunchKernel",
          launch_kernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
}

/* Waits until the stream has done all its work. */
static void gpu_wait(void)
{
    check("cuStreamSynchronize", stream_synchronize(stream));
}

/* Allocates memory of the GPU. */
static inline unsigned long long gpu_allocate(size_t bytes)
{
    unsigned long long pointer;
    check("cuMemAlloc_v2", mem_alloc(&pointer, bytes));
    return pointer;
}

/* Frees memory of the GPU. */
static inline void gpu_free(unsigned long long pointer)
{
    check("cuMemFree_v2", mem_free(pointer));
}

/* Copies to the GPU. Returns as soon as the driver has read the host's memory. */
static inline void gpu_copy_in(unsigned long long to, const void *from, size_t bytes)
{
    check("cuMemcpyHtoD_v2", copy_in(to, from, bytes));
}

/* Enqueues a copy to the GPU on the stream. */
static inline void gpu_copy_in_async(unsigned long long to, const void *from, size_t bytes)
{
    check("cuMemcpyHtoDAsync_v2", copy_in_async(to, from, bytes, stream));
}

/* Copies from the GPU, and returns when the copy is done. */
static inline void gpu_copy_out(void *to, unsigned long long from, size_t bytes)
{
    check("cuMemcpyDtoH_v2", copy_out(to, from, bytes));
}

/* Captures a graph of this number of kernels, each of `ns` nanoseconds. Destroys the previous graph in `*graph`, if
 * any. */
static inline void gpu_capture(void **graph, int kernels, uint64_t ns)
{
    void *captured;
    if (*graph != NULL)
        check("cuGraphExecDestroy", destroy_executable(*graph));
    check("cuStreamBeginCapture_v2", begin_capture(stream, 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */));
    for (int i = 0; i < kernels; i++)
        gpu_launch(ns);
    check("cuStreamEndCapture", end_capture(stream, &captured));
    check("cuGraphInstantiateWithFlags", instantiate(graph, captured, 0));
    check("cuGraphDestroy", destroy_graph(captured));
}

static inline void gpu_launch_graph(void *graph)
{
    check("cuGraphLaunch", launch_graph(graph, stream));
}

/* Keeps the thread's processor busy for `ns` nanoseconds. */
static inline void host_works(uint64_t ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t until = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + ns;
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec < until);
}

#endif
