/* The CUDA runtime: libcudart.so.12, libcudart.so.13 and libcudart_static.a, selected by
 * RUNTIME.
 *
 * It finds the driver like NVIDIA's runtime, without linking to it. The first call opens
 * libcuda.so.1 and finds cuGetProcAddress_v2 with dlsym. Then it calls cuGetProcAddress_v2 for
 * the empty name at version 0, and for each driver function, even if the program does not need
 * it. The versions and stream kinds are those that real runtimes (12.9 and 13.0) ask for. */
#define _GNU_SOURCE
#define STANDIN_SOURCE
#include "standin.h"
#include "standin_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* The functions that the runtime looks up in the driver, in the order of a real runtime: field,
 * name, version and flags. */
#define LOOK_UPS(X) \
    X(cuInit, "cuInit", 2000, 0) \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, 0) \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0) \
    X(cuDeviceGet, "cuDeviceGet", 2000, 0) \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0) \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, 0) \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0) \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0) \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0) \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0) \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, 0) \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0) \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0) \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0) \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, 0) \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0) \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, 0) \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0) \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0) \
    X(cuMemFree_v2, "cuMemFree", 3020, 0) \
    X(cuMemcpy, "cuMemcpy", 4000, 0) \
    X(cuMemcpy_ptds, "cuMemcpy", 7000, 2) \
    X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, 0) \
    X(cuMemcpyHtoD_v2_ptds, "cuMemcpyHtoD", 7000, 2) \
    X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, 0) \
    X(cuMemcpyHtoDAsync_v2_ptsz, "cuMemcpyHtoDAsync", 7000, 2) \
    X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, 0) \
    X(cuMemcpyDtoH_v2_ptds, "cuMemcpyDtoH", 7000, 2) \
    X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020, 0) \
    X(cuMemcpyDtoHAsync_v2_ptsz, "cuMemcpyDtoHAsync", 7000, 2) \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, 0) \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 2) \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, 0) \
    X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, 2) \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 0) \
    X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, 2) \
    X(cuEventCreate, "cuEventCreate", 2000, 0) \
    X(cuEventRecord, "cuEventRecord", 2000, 0) \
    X(cuEventRecord_ptsz, "cuEventRecord", 7000, 2) \
    X(cuEventQuery, "cuEventQuery", 2000, 0) \
    X(cuEventElapsedTime, "cuEventElapsedTime", 2000, 0) \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, 0) \
    X(cuEventDestroy_v2, "cuEventDestroy", 4000, 0) \
    X(cuStreamCreate, "cuStreamCreate", 2000, 0) \
    X(cuStreamQuery, "cuStreamQuery", 2000, 0) \
    X(cuStreamQuery_ptsz, "cuStreamQuery", 7000, 2) \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0) \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 2) \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0) \
    X(cuProfilerStart, "cuProfilerStart", 4000, 0) \
    X(cuProfilerStop, "cuProfilerStop", 4000, 0) \
    X(cuGraphCreate, "cuGraphCreate", 10000, 0) \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0) \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, 0) \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, 2) \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0) \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, 0) \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, 0) \
    X(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, 2) \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0) \
    X(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, 2) \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, 0) \
    X(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, 2) \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0) \
    X(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, 2) \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, 0) \
    X(cuStreamIsCapturing_ptsz, "cuStreamIsCapturing", 10000, 2) \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, 0)

#define FIELD(field, name, version, flags) __typeof__(&field) field;
static struct {
    LOOK_UPS(FIELD)
    __typeof__(&standin_via) via;
} driver;

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static cudaError_t load_result;
static __thread int current_device;
static __thread cudaError_t last_error;

static const char *no_via(const char *via)
{
    return via;
}

static void load(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    load_result = cudaErrorInsufficientDriver;
    if (handle == NULL)
        return;
    __typeof__(&cuGetProcAddress_v2) newer =
        (__typeof__(newer))dlsym(handle, "cuGetProcAddress_v2");
    __typeof__(&cuGetProcAddress) older = NULL;
    if (newer == NULL && RUNTIME_VERSION < 13000)
        older = (__typeof__(older))dlsym(handle, "cuGetProcAddress");
    if (newer == NULL && older == NULL)
        return;
    if (RUNTIME_VERSION >= 13000) {
        int version = 0;
        __typeof__(&cuDriverGetVersion) get_version =
            (__typeof__(get_version))dlsym(handle, "cuDriverGetVersion");
        if (get_version == NULL || get_version(&version) != CUDA_SUCCESS || version < 13000)
            return;
    }
#define ASK(name, to, version, flags) \
    (newer != NULL ? newer(name, (void **)(to), version, flags, NULL) \
                   : older(name, (void **)(to), version, flags))
    void *nothing = NULL;
    ASK("", &nothing, 0, 0);
#define LOOK_UP(field, name, version, flags) \
    if (ASK(name, &driver.field, version, flags) != CUDA_SUCCESS) \
        driver.field = NULL;
    LOOK_UPS(LOOK_UP)
    driver.via = (__typeof__(driver.via))dlsym(handle, "standin_via");
    if (driver.via == NULL)
        driver.via = no_via;
    if (driver.cuInit != NULL)
        load_result = (cudaError_t)driver.cuInit(0);
}

static cudaError_t note(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

static cudaError_t make_current(int device)
{
    CUcontext context;
    CUresult result = driver.cuDevicePrimaryCtxRetain(&context, device);
    if (result == CUDA_SUCCESS)
        result = driver.cuCtxSetCurrent(context);
    return (cudaError_t)result;
}

static cudaError_t ready(void)
{
    pthread_once(&loaded, load);
    if (load_result != cudaSuccess)
        return load_result;
    CUcontext context = NULL;
    CUresult result = driver.cuCtxGetCurrent(&context);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    return context != NULL ? cudaSuccess : make_current(current_device);
}

static void leave(const char **before)
{
    driver.via(*before);
}

/* Calls a function of the driver. During the call, the log names this runtime as the caller. The
 * previous name is restored even if an exception leaves the call. */
#define THROUGH(function, ...) \
    do { \
        cudaError_t refused = ready(); \
        if (refused == cudaSuccess && driver.function == NULL) \
            refused = cudaErrorCallRequiresNewerDriver; \
        if (refused != cudaSuccess) \
            return note(refused); \
        const char *before __attribute__((cleanup(leave))) = driver.via(RUNTIME_NAME); \
        return note((cudaError_t)driver.function(__VA_ARGS__)); \
    } while (0)

cudaError_t cudaDriverGetVersion(int *version)
{
    THROUGH(cuDriverGetVersion, version);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "cudaErrorOfStandin";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "error of the stand-in for CUDA";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    THROUGH(cuDeviceGetCount, count);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    pthread_once(&loaded, load);
    if (load_result != cudaSuccess)
        return note(load_result);
    cudaError_t result = make_current(device);
    if (result == cudaSuccess)
        current_device = device;
    return note(result);
}

cudaError_t cudaDeviceReset(void)
{
    THROUGH(cuDevicePrimaryCtxReset_v2, current_device);
}

cudaError_t cudaDeviceSynchronize(void)
{
    THROUGH(cuCtxSynchronize);
}

cudaError_t cudaProfilerStart(void)
{
    THROUGH(cuProfilerStart);
}

cudaError_t cudaProfilerStop(void)
{
    THROUGH(cuProfilerStop);
}

static cudaError_t entry_point(const char *symbol, void **function, unsigned int version,
                               unsigned long long flags,
                               enum cudaDriverEntryPointQueryResult *status)
{
    cudaError_t refused = ready();
    if (refused != cudaSuccess)
        return note(refused);
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    CUresult result =
        driver.cuGetProcAddress_v2 != NULL
            ? driver.cuGetProcAddress_v2(symbol, function, (int)version, flags, &found)
            : driver.cuGetProcAddress(symbol, function, (int)version, flags);
    if (status != NULL)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return note((cudaError_t)result);
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    return entry_point(symbol, function, RUNTIME_VERSION, flags, status);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function,
                                         unsigned long long flags,
                                         enum cudaDriverEntryPointQueryResult *status)
{
    return entry_point(symbol, function, RUNTIME_VERSION,
                       flags == cudaEnableDefault ? cudaEnablePerThreadDefaultStream : flags,
                       status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    return entry_point(symbol, function, version, flags, status);
}

cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
                                                  unsigned int version, unsigned long long flags,
                                                  enum cudaDriverEntryPointQueryResult *status)
{
    return entry_point(symbol, function, version,
                       flags == cudaEnableDefault ? cudaEnablePerThreadDefaultStream : flags,
                       status);
}

static CUdeviceptr device(const void *pointer)
{
    return (CUdeviceptr)(size_t)pointer;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    THROUGH(cuMemAlloc_v2, (CUdeviceptr *)pointer, bytes);
}

cudaError_t cudaFree(void *pointer)
{
    THROUGH(cuMemFree_v2, device(pointer));
}

#define COPY(to_device, to_host, other) \
    switch (kind) { \
    case cudaMemcpyHostToDevice: \
        THROUGH(to_device, device(to), from, bytes); \
    case cudaMemcpyDeviceToHost: \
        THROUGH(to_host, to, device(from), bytes); \
    default: \
        THROUGH(other, device(to), device(from), bytes); \
    }

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    COPY(cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, cuMemcpy)
}

cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    COPY(cuMemcpyHtoD_v2_ptds, cuMemcpyDtoH_v2_ptds, cuMemcpy_ptds)
}

#define COPY_ASYNC(to_device, to_host) \
    switch (kind) { \
    case cudaMemcpyHostToDevice: \
        THROUGH(to_device, device(to), from, bytes, stream); \
    case cudaMemcpyDeviceToHost: \
        THROUGH(to_host, to, device(from), bytes, stream); \
    default: \
        return note(cudaErrorInvalidValue); \
    }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    COPY_ASYNC(cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2)
}

cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                 cudaStream_t stream)
{
    COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyDtoHAsync_v2_ptsz)
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    THROUGH(cuStreamCreate, stream, CU_STREAM_DEFAULT);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    THROUGH(cuStreamCreate, stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    THROUGH(cuStreamDestroy_v2, stream);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    THROUGH(cuEventCreate, event, 0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    THROUGH(cuEventCreate, event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    THROUGH(cuEventDestroy_v2, event);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    THROUGH(cuEventQuery, event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    THROUGH(cuEventElapsedTime, milliseconds, from, to);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    THROUGH(cuEventSynchronize, event);
}

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned int flags)
{
    THROUGH(cuGraphCreate, graph, flags);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    THROUGH(cuGraphDestroy, graph);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    THROUGH(cuGraphInstantiateWithFlags, exec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    THROUGH(cuGraphInstantiateWithFlags, exec, graph, flags);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    THROUGH(cuGraphExecDestroy, exec);
}

static CUlaunchConfig driver_config(const cudaLaunchConfig_t *config)
{
    return (CUlaunchConfig){config->gridDim.x,
                            config->gridDim.y,
                            config->gridDim.z,
                            config->blockDim.x,
                            config->blockDim.y,
                            config->blockDim.z,
                            (unsigned int)config->dynamicSmemBytes,
                            config->stream,
                            (CUlaunchAttribute *)config->attrs,
                            config->numAttrs};
}

/* The stand-in uses a kernel's host address directly. In real programs, code that nvcc generates registers the
 * address. */
#define KERNEL ((CUfunction)function)
#define SHAPE grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned int)sharedBytes, stream

#define FORM(name) name
#include "runtime_streams.h"
#undef FORM

#define FORM(name) name##_ptsz
#include "runtime_streams.h"
