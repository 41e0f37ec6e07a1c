/* The part of the CUDA driver API that the stand-in implements. Names, values and layouts are those of NVIDIA's
 * cuda.h (12.9 and 13). So a program calls the same functions whether it is built with this header or with cuda.h. */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910
} CUresult;

typedef enum CUdriverProcAddressQueryResult_enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} CUdriverProcAddressQueryResult;

typedef enum CUstreamCaptureMode_enum {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
} CUstreamCaptureMode;

typedef enum CUstreamCaptureStatus_enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
} CUstreamCaptureStatus;

enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_DISABLE_TIMING = 2 };
enum {
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUlaunchAttribute_st CUlaunchAttribute;
typedef struct CUctxCreateParams_st CUctxCreateParams;

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

typedef enum CUgraphNodeType_enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_EMPTY = 5,
    CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13
} CUgraphNodeType;

typedef cuuint64_t CUgraphConditionalHandle;
enum { CU_GRAPH_COND_TYPE_IF = 0, CU_GRAPH_COND_TYPE_WHILE = 1, CU_GRAPH_COND_ASSIGN_DEFAULT = 1 };

/* Parameters of a conditional node. The structure is as large as that of cuda.h, which has parameters of other
 * node types, too. */
typedef struct CUgraphNodeParams_st {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        struct {
            CUgraphConditionalHandle handle;
            int type;
            unsigned int size;
            CUgraph *phGraph_out;
            CUcontext ctx;
        } conditional;
    };
    long long reserved2;
} CUgraphNodeParams;

typedef void (*CUhostFn)(void *data);
enum { CU_EVENT_RECORD_EXTERNAL = 1, CU_EVENT_WAIT_EXTERNAL = 1 };

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
    struct CUkern_st *kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUgraphExecUpdateResultInfo_st {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

/* Declares a function and its per-thread-default-stream twin. */
#define STANDIN_BOTH(name, suffix, arguments) \
    CUresult name arguments;                  \
    CUresult name##suffix arguments;

CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status);

CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active);
CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                        CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuFuncGetName(const char **name, CUfunction function);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
STANDIN_BOTH(cuMemsetD8Async, _ptsz,
             (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))
STANDIN_BOTH(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes))
STANDIN_BOTH(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes))
STANDIN_BOTH(cuMemcpyHtoDAsync_v2, _ptsz,
             (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))
STANDIN_BOTH(cuMemcpyDtoDAsync_v2, _ptsz,
             (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
STANDIN_BOTH(cuMemcpyDtoH, _ptds, (void *to, CUdeviceptr_v1 from, unsigned int bytes))
STANDIN_BOTH(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes))
STANDIN_BOTH(cuMemcpyDtoHAsync, _ptsz,
             (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream))
STANDIN_BOTH(cuMemcpyDtoHAsync_v2, _ptsz,
             (void *to, CUdeviceptr from, size_t bytes, CUstream stream))

CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
STANDIN_BOTH(cuStreamQuery, _ptsz, (CUstream stream))
STANDIN_BOTH(cuStreamSynchronize, _ptsz, (CUstream stream))
STANDIN_BOTH(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus *status))
STANDIN_BOTH(cuStreamBeginCapture, _ptsz, (CUstream stream))
STANDIN_BOTH(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode))
STANDIN_BOTH(cuStreamBeginCaptureToGraph, _ptsz,
             (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
              const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode))
STANDIN_BOTH(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph))
STANDIN_BOTH(cuStreamGetCaptureInfo_v2, _ptsz,
             (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
              const CUgraphNode **dependencies, size_t *count))
STANDIN_BOTH(cuStreamGetCaptureInfo_v3, _ptsz,
             (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
              const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count))
STANDIN_BOTH(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned int flags))
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventQuery(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to);
CUresult cuEventSynchronize(CUevent event);
STANDIN_BOTH(cuEventRecord, _ptsz, (CUevent event, CUstream stream))
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data);
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphClone(CUgraph *clone, CUgraph original);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type);
CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  size_t count, CUgraph child);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child);
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                        unsigned int value, unsigned int flags);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params);
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *params);
STANDIN_BOTH(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream))
STANDIN_BOTH(cuLaunchKernel, _ptsz,
             (CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,
              unsigned int blockX, unsigned int blockY, unsigned int blockZ,
              unsigned int sharedBytes, CUstream stream, void **params, void **extra))
STANDIN_BOTH(cuLaunchKernelEx, _ptsz,
             (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))
STANDIN_BOTH(cuLaunchCooperativeKernel, _ptsz,
             (CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,
              unsigned int blockX, unsigned int blockY, unsigned int blockZ,
              unsigned int sharedBytes, CUstream stream, void **params))

/* The rest of this header is for tests: functions and types that the real driver does not have. This structure
 * describes a piece of GPU work. */
struct standin_work {
    int kind; /* CUPTI's number: 10 a kernel, 1 a copy, 2 a memset */
    const char *name;
    unsigned long long bytes;
    int direction;
    unsigned long long start, end; /* CLOCK_REALTIME, ns */
    unsigned int stream, correlation;
    /* for a node of a graph: the executable graph's number and the node's number; otherwise 0 */
    unsigned int exec, node;
    unsigned int grid[3];
};
void standin_set_tool(void (*tool)(const struct standin_work *));
/* Begins the removal of a profiler from the driver. If a thread is in the driver or enters it before the end of the
 * removal, the context is destroyed, and every call fails from then on. Returns the number of threads that were in
 * the driver. */
int standin_begin_removal(void);
int standin_end_removal(void);
/* Returns the number by which CUPTI identifies an executable graph. */
unsigned int standin_exec_number(CUgraphExec exec);
/* Returns the number of times that the removal of a profiler has begun. */
unsigned int standin_removals(void);
void standin_set_callback(void (*callback)(const char *function));
const char *standin_via(const char *via);
void standin_pass(unsigned long ns);

/* Renames functions as cuda.h does. The stand-in's own sources need the original names. */
#ifndef STANDIN_SOURCE
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define STANDIN_PTDS(name) name##_ptds
#define STANDIN_PTSZ(name) name##_ptsz
#define cuMemcpy cuMemcpy_ptds
#define cuMemsetD8Async cuMemsetD8Async_ptsz
#define cuStreamQuery cuStreamQuery_ptsz
#define cuStreamSynchronize cuStreamSynchronize_ptsz
#define cuStreamIsCapturing cuStreamIsCapturing_ptsz
#define cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
#define cuStreamEndCapture cuStreamEndCapture_ptsz
#define cuEventRecord cuEventRecord_ptsz
#define cuStreamWaitEvent cuStreamWaitEvent_ptsz
#define cuGraphLaunch cuGraphLaunch_ptsz
#define cuLaunchKernel cuLaunchKernel_ptsz
#define cuLaunchKernelEx cuLaunchKernelEx_ptsz
#define cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz
#else
#define STANDIN_PTDS(name) name
#define STANDIN_PTSZ(name) name
#endif
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
#define cuCtxDestroy cuCtxDestroy_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemcpyHtoD STANDIN_PTDS(cuMemcpyHtoD_v2)
#define cuMemcpyHtoDAsync STANDIN_PTSZ(cuMemcpyHtoDAsync_v2)
#define cuMemcpyDtoDAsync STANDIN_PTSZ(cuMemcpyDtoDAsync_v2)
#define cuMemcpyDtoH STANDIN_PTDS(cuMemcpyDtoH_v2)
#define cuMemcpyDtoHAsync STANDIN_PTSZ(cuMemcpyDtoHAsync_v2)
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamBeginCapture STANDIN_PTSZ(cuStreamBeginCapture_v2)
#define cuEventDestroy cuEventDestroy_v2
#define cuGraphInstantiate cuGraphInstantiateWithFlags
#define cuGraphExecUpdate cuGraphExecUpdate_v2
#define cuGraphAddKernelNode cuGraphAddKernelNode_v2
#endif

#ifdef __cplusplus
}
#endif
#endif
