/* Devices, contexts, modules, and the profiler, which needs a context. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

enum { DRIVER_VERSION = 13000, MAX_DEVICES = 8, MAX_DEPTH = 16 };

struct CUmod_st {
    int unused;
};

static struct CUctx_st primary[MAX_DEVICES];
static int retained[MAX_DEVICES];
/* The calling thread's stack of contexts. The last one is the current context. */
static __thread CUcontext stack[MAX_DEPTH];
static __thread int depth;

static int device_count(void)
{
    const char *text = getenv("STANDIN_DEVICES");
    int count = text != NULL ? atoi(text) : 1;
    return count < 0 ? 0 : count > MAX_DEVICES ? MAX_DEVICES : count;
}

static CUresult checked_state(void)
{
    driver_lock();
    CUresult result = driver_state();
    driver_unlock();
    return result;
}

static CUresult checked_device(CUdevice device)
{
    CUresult result = checked_state();
    if (result != CUDA_SUCCESS)
        return result;
    return device < 0 || device >= device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUcontext current_context(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

bool has_current_context(void)
{
    return current_context() != NULL;
}

/* Marks all streams and events of the context as destroyed. The caller holds the driver's lock. */
static void end_all_of(CUcontext context)
{
    end_streams_of(context);
    end_events_of(context);
}

CUresult cuInit(unsigned int flags)
{
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : driver_init();
}

CUresult cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_OF_STANDIN";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_SUCCESS ? "no error" : "error of the stand-in for CUDA";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = checked_state();
    if (result == CUDA_SUCCESS)
        *count = device_count();
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = checked_device(ordinal);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult result = checked_device(device);
    if (result == CUDA_SUCCESS && length > 0)
        snprintf(name, (size_t)length, "stand-in for CUDA");
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = checked_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    primary[device].device = device;
    retained[device]++;
    driver_unlock();
    *context = &primary[device];
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    CUresult result = checked_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    if (retained[device] > 0)
        retained[device]--;
    else
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS && retained[device] == 0)
        end_all_of(&primary[device]);
    driver_unlock();
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release(device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release(device);
}

static CUresult reset(CUdevice device)
{
    CUresult result = checked_device(device);
    if (result == CUDA_SUCCESS) {
        driver_lock();
        end_all_of(&primary[device]);
        driver_unlock();
    }
    return result;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return reset(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return reset(device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUresult result = checked_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    *flags = 0;
    *active = retained[device] > 0;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = checked_state();
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL || depth == MAX_DEPTH)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = checked_state();
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = checked_state();
    if (result == CUDA_SUCCESS)
        *context = depth > 0 ? stack[depth - 1] : NULL;
    return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = checked_state();
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!has_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, CUdevice device)
{
    CUresult result = checked_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    *context = made;
    return cuCtxPushCurrent_v2(made);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                        CUdevice device)
{
    (void)params;
    (void)flags;
    return create(context, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth > 0 && stack[depth - 1] == context)
        depth--;
    driver_lock();
    end_all_of(context);
    driver_unlock();
    return CUDA_SUCCESS;
}

#ifndef LACKING
static CUresult profiler(const char *function)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, NULL, NEEDS_CONTEXT);
    driver_unlock();
    return call_end(function, result);
}

CUresult cuProfilerStart(void)
{
    return profiler("cuProfilerStart");
}

CUresult cuProfilerStop(void)
{
    return profiler("cuProfilerStop");
}
#endif

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    if (image == NULL || !has_current_context())
        return image == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    tool_enter();
    const char *takes = getenv("STANDIN_LOAD_US");
    if (takes != NULL)
        usleep((unsigned int)atoi(takes));
    *module = calloc(1, sizeof **module);
    tool_leave();
    return *module == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    free(module);
    return CUDA_SUCCESS;
}

/* Returns the function object for a kernel, which only stores the kernel's name: in the stand-in, every kernel
 * has the same effect (see run_kernel). The caller holds the driver's lock. */
CUfunction kept_function(const char *name)
{
    static struct CUfunc_st *functions;
    struct CUfunc_st *found = functions;
    while (found != NULL && strcmp(found->name, name) != 0)
        found = found->next;
    if (found == NULL && (found = malloc(sizeof *found + strlen(name) + 1)) != NULL) {
        strcpy(found->name, name);
        found->next = functions;
        functions = found;
    }
    return found;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUfunction found = kept_function(name);
    driver_unlock();
    *function = found;
    return found == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
