/* The part of the CUDA runtime API that the stand-in implements, declared like in NVIDIA's
 * cuda_runtime_api.h. A program includes this header if it is built for the stand-in, and
 * otherwise the real one:
 *     #ifdef STANDIN
 *     #include "standin.h"
 *     #else
 *     #include <cuda_runtime.h>
 *     #endif */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorCudartUnloading = 4,
    cudaErrorInsufficientDriver = 35,
    cudaErrorCallRequiresNewerDriver = 36,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
    cudaDriverEntryPointVersionNotSufficent = 2
};

enum {
    cudaEnableDefault = 0,
    cudaEnableLegacyStream = 1,
    cudaEnablePerThreadDefaultStream = 2
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct cudaGraphEdgeData_st cudaGraphEdgeData;
typedef struct cudaLaunchAttribute_st cudaLaunchAttribute;

typedef struct dim3 {
    unsigned int x, y, z;
} dim3;

typedef struct cudaLaunchConfig_st {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned int numAttrs;
} cudaLaunchConfig_t;

#define STANDIN_RUNTIME_BOTH(name, suffix, arguments) \
    cudaError_t name arguments;                       \
    cudaError_t name##suffix arguments;

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
STANDIN_RUNTIME_BOTH(cudaGetDriverEntryPoint, _ptsz,
                     (const char *symbol, void **function, unsigned long long flags,
                      enum cudaDriverEntryPointQueryResult *status))
STANDIN_RUNTIME_BOTH(cudaGetDriverEntryPointByVersion, _ptsz,
                     (const char *symbol, void **function, unsigned int version,
                      unsigned long long flags, enum cudaDriverEntryPointQueryResult *status))

cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
STANDIN_RUNTIME_BOTH(cudaMemcpy, _ptds,
                     (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind))
STANDIN_RUNTIME_BOTH(cudaMemcpyAsync, _ptsz,
                     (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                      cudaStream_t stream))

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
STANDIN_RUNTIME_BOTH(cudaStreamQuery, _ptsz, (cudaStream_t stream))
STANDIN_RUNTIME_BOTH(cudaStreamSynchronize, _ptsz, (cudaStream_t stream))
STANDIN_RUNTIME_BOTH(cudaStreamIsCapturing, _ptsz,
                     (cudaStream_t stream, enum cudaStreamCaptureStatus *status))
STANDIN_RUNTIME_BOTH(cudaStreamBeginCapture, _ptsz,
                     (cudaStream_t stream, enum cudaStreamCaptureMode mode))
STANDIN_RUNTIME_BOTH(cudaStreamBeginCaptureToGraph, _ptsz,
                     (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                      const cudaGraphEdgeData *edges, size_t count,
                      enum cudaStreamCaptureMode mode))
STANDIN_RUNTIME_BOTH(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t *graph))
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
STANDIN_RUNTIME_BOTH(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream))

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned int flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
STANDIN_RUNTIME_BOTH(cudaGraphLaunch, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream))
STANDIN_RUNTIME_BOTH(cudaLaunchKernel, _ptsz,
                     (const void *function, dim3 grid, dim3 block, void **params,
                      size_t sharedBytes, cudaStream_t stream))
STANDIN_RUNTIME_BOTH(cudaLaunchKernelExC, _ptsz,
                     (const cudaLaunchConfig_t *config, const void *function, void **params))
STANDIN_RUNTIME_BOTH(cudaLaunchCooperativeKernel, _ptsz,
                     (const void *function, dim3 grid, dim3 block, void **params,
                      size_t sharedBytes, cudaStream_t stream))

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) && !defined(STANDIN_SOURCE)
#define cudaGetDriverEntryPoint cudaGetDriverEntryPoint_ptsz
#define cudaGetDriverEntryPointByVersion cudaGetDriverEntryPointByVersion_ptsz
#define cudaMemcpy cudaMemcpy_ptds
#define cudaMemcpyAsync cudaMemcpyAsync_ptsz
#define cudaStreamQuery cudaStreamQuery_ptsz
#define cudaStreamSynchronize cudaStreamSynchronize_ptsz
#define cudaStreamIsCapturing cudaStreamIsCapturing_ptsz
#define cudaStreamBeginCapture cudaStreamBeginCapture_ptsz
#define cudaStreamBeginCaptureToGraph cudaStreamBeginCaptureToGraph_ptsz
#define cudaStreamEndCapture cudaStreamEndCapture_ptsz
#define cudaEventRecord cudaEventRecord_ptsz
#define cudaGraphLaunch cudaGraphLaunch_ptsz
#define cudaLaunchKernel cudaLaunchKernel_ptsz
#define cudaLaunchKernelExC cudaLaunchKernelExC_ptsz
#define cudaLaunchCooperativeKernel cudaLaunchCooperativeKernel_ptsz
#endif

#ifdef __cplusplus
}
#endif
#endif
