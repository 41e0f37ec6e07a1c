/* cuGetProcAddress, in both ABIs.
 *
 * It looks up a function by its name without a suffix such as _v2, for a CUDA version and a kind
 * of default stream. The result is the newest form of the function that this CUDA version has
 * according to NVIDIA's cudaTypedefs.h. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum default_stream { EITHER, LEGACY, PER_THREAD };

struct row {
    const char *base, *exported;
    int since;
    enum default_stream stream;
    void *function;
};

#define ROW(base, form, since, stream) {#base, #form, since, stream, (void *)form},
#define ONE(name, since) ROW(name, name, since, EITHER)
#define FORM(name, suffix, since) ROW(name, name##suffix, since, EITHER)
#define BOTH(name, since) ROW(name, name, since, LEGACY) ROW(name, name##_ptsz, since, PER_THREAD)
#define BOTH_V2(name, per_thread, since) \
    ROW(name, name##_v2, since, LEGACY) ROW(name, name##_v2##per_thread, since, PER_THREAD)

static const struct row rows[] = {
    ONE(cuInit, 2000)
    ONE(cuDriverGetVersion, 2020)
    ONE(cuGetErrorName, 6000)
    ONE(cuGetErrorString, 6000)
    ONE(cuGetProcAddress, 11030)
    FORM(cuGetProcAddress, _v2, 12000)
    ONE(cuDeviceGet, 2000)
    ONE(cuDeviceGetCount, 2000)
    ONE(cuDeviceGetName, 2000)
    ONE(cuDevicePrimaryCtxRetain, 7000)
    ONE(cuDevicePrimaryCtxRelease, 7000)
    FORM(cuDevicePrimaryCtxRelease, _v2, 11000)
    ONE(cuDevicePrimaryCtxReset, 7000)
    FORM(cuDevicePrimaryCtxReset, _v2, 11000)
    ONE(cuDevicePrimaryCtxGetState, 7000)
    ONE(cuCtxCreate, 2000)
    FORM(cuCtxCreate, _v2, 3020)
    FORM(cuCtxCreate, _v4, 12050)
    FORM(cuCtxDestroy, _v2, 4000)
    ONE(cuCtxGetCurrent, 4000)
    ONE(cuCtxSetCurrent, 4000)
    FORM(cuCtxPushCurrent, _v2, 4000)
    FORM(cuCtxPopCurrent, _v2, 4000)
    ONE(cuCtxGetDevice, 2000)
    ONE(cuCtxSynchronize, 2000)
    FORM(cuCtxSynchronize, _v2, 13000)
    ONE(cuModuleLoadData, 2000)
    ONE(cuModuleUnload, 2000)
    ONE(cuModuleGetFunction, 2000)
    FORM(cuMemAlloc, _v2, 3020)
    FORM(cuMemFree, _v2, 3020)
    FORM(cuMemGetInfo, _v2, 3020)
    BOTH(cuMemsetD8Async, 3020)
    ROW(cuMemcpy, cuMemcpy, 4000, LEGACY)
    ROW(cuMemcpy, cuMemcpy_ptds, 7000, PER_THREAD)
    BOTH_V2(cuMemcpyHtoD, _ptds, 3020)
    BOTH_V2(cuMemcpyHtoDAsync, _ptsz, 3020)
    BOTH_V2(cuMemcpyDtoDAsync, _ptsz, 3020)
    ROW(cuMemcpyDtoH, cuMemcpyDtoH, 2000, LEGACY)
    ROW(cuMemcpyDtoH, cuMemcpyDtoH_ptds, 2000, PER_THREAD)
    BOTH_V2(cuMemcpyDtoH, _ptds, 3020)
    ROW(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, 2000, LEGACY)
    ROW(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_ptsz, 2000, PER_THREAD)
    BOTH_V2(cuMemcpyDtoHAsync, _ptsz, 3020)
    ONE(cuStreamCreate, 2000)
    FORM(cuStreamDestroy, _v2, 4000)
    ONE(cuStreamGetCtx, 9020)
    BOTH(cuStreamQuery, 2000)
    BOTH(cuStreamSynchronize, 2000)
    BOTH(cuStreamIsCapturing, 10000)
    BOTH(cuStreamBeginCapture, 10000)
    BOTH_V2(cuStreamBeginCapture, _ptsz, 10010)
    BOTH(cuStreamEndCapture, 10000)
    ONE(cuThreadExchangeStreamCaptureMode, 10010)
    ONE(cuEventCreate, 2000)
    FORM(cuEventDestroy, _v2, 4000)
    ONE(cuEventQuery, 2000)
    ONE(cuEventElapsedTime, 2000)
    ONE(cuEventSynchronize, 2000)
    BOTH(cuEventRecord, 2000)
    ONE(cuGraphCreate, 10000)
    ONE(cuGraphDestroy, 10000)
    ONE(cuGraphInstantiateWithFlags, 11040)
    ONE(cuGraphExecDestroy, 10000)
    FORM(cuGraphExecUpdate, _v2, 12000)
    ONE(cuGraphClone, 10000)
    ONE(cuGraphGetNodes, 10000)
    ONE(cuGraphNodeGetType, 10000)
    ONE(cuGraphAddEmptyNode, 10000)
    ONE(cuGraphAddChildGraphNode, 10000)
    ONE(cuGraphChildGraphNodeGetGraph, 10000)
    ONE(cuGraphExecChildGraphNodeSetParams, 11010)
    ONE(cuGraphConditionalHandleCreate, 12030)
    ONE(cuGraphAddNode, 12020)
    FORM(cuGraphAddNode, _v2, 12030)
    FORM(cuGraphKernelNodeGetParams, _v2, 12000)
    FORM(cuGraphAddKernelNode, _v2, 12000)
    BOTH(cuStreamWaitEvent, 3020)
    ONE(cuFuncGetName, 12030)
    ROW(cuGraphLaunch, cuGraphLaunch, 10000, LEGACY)
    BOTH(cuLaunchKernel, 4000)
#ifndef LACKING
    ROW(cuGraphLaunch, cuGraphLaunch_ptsz, 10000, PER_THREAD)
    BOTH(cuLaunchKernelEx, 11060)
    BOTH(cuLaunchCooperativeKernel, 9000)
    BOTH(cuStreamBeginCaptureToGraph, 12030)
    ONE(cuProfilerStart, 4000)
    ONE(cuProfilerStop, 4000)
#endif
};

/* Returns true if STANDIN_LACKS, a comma-separated list, names the function, or the function whose per-thread form
 * it is. */
static bool lacks(const char *exported)
{
    const char *list = getenv("STANDIN_LACKS");
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ",");
        const char *rest = exported + length;
        if (length > 0 && strncmp(exported, list, length) == 0 &&
            (*rest == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0))
            return true;
        list += length + (list[length] == ',');
    }
    return false;
}

static CUresult look_up(const char *symbol, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    if (symbol == NULL || pfn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    enum default_stream wanted =
        flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? PER_THREAD : LEGACY;
    const struct row *best = NULL;
    bool newer = false;
    for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        if (strcmp(row->base, symbol) != 0 || (row->stream != EITHER && row->stream != wanted) ||
            lacks(row->exported))
            continue;
        if (row->since > version)
            newer = true;
        else if (best == NULL || row->since > best->since)
            best = row;
    }
    *pfn = best != NULL ? best->function : NULL;
    if (status != NULL)
        *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : newer      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    return look_up(symbol, pfn, version, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    return look_up(symbol, pfn, version, flags, status);
}
