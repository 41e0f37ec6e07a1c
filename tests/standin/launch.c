/* Launches of kernels and host functions. */
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct host_call {
    CUhostFn function;
    void *data;
};

/* Number of host functions that threads of the driver run. */
static atomic_uint running;

static void *run_host_function(void *given)
{
    struct host_call call = *(struct host_call *)given;
    free(given);
    call.function(call.data);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

/* Calls a host function: in the calling thread, or with STANDIN_HOST_THREAD in a thread of the driver, as the real
 * driver does. */
static void call_host_function(const struct node *node)
{
    if (getenv("STANDIN_HOST_THREAD") == NULL) {
        node->host(node->to);
        return;
    }
    pthread_t thread;
    struct host_call *call = malloc(sizeof *call);
    if (call == NULL)
        abort();
    *call = (struct host_call){node->host, node->to};
    atomic_fetch_add(&running, 1);
    if (pthread_create(&thread, NULL, run_host_function, call) != 0)
        abort();
    pthread_detach(thread);
}

void wait_for_host_functions(void)
{
    int saved_errno = errno;
    while (atomic_load(&running) > 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    errno = saved_errno;
}

CUresult submit(CUstream stream, struct node node, unsigned int exec, unsigned int number)
{
    if (tool_has_destroyed())
        return CUDA_ERROR_LAUNCH_FAILED;
    switch (stream->capture) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
        if (!graph_add(stream->graph, node))
            return CUDA_ERROR_OUT_OF_MEMORY;
        stream->last = (CUgraphNode)stream->graph->nodes[stream->graph->count - 1];
        return CUDA_SUCCESS;
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    default: {
        struct span span = work(stream);
        if (node.kind <= SET_NODE)
            tool_run(stream, &node, exec, number, span);
        switch (node.kind) {
        case COPY_NODE:
            memmove(node.to, node.from, node.bytes);
            break;
        case SET_NODE:
            memset(node.to, node.value, node.bytes);
            break;
        case KERNEL_NODE:
            run_kernel(node.kernel_buffer);
            break;
        case HOST_NODE:
            call_host_function(&node);
            break;
        default:
            break;
        }
        return CUDA_SUCCESS;
    }
    }
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    driver_lock();
    struct node node = {.kind = HOST_NODE, .host = function, .to = data};
    CUresult result = submit(stream_of(stream, false), node, 0, 0);
    driver_unlock();
    return result;
}

struct shape {
    unsigned int x, y, z;
};

static CUresult launch(const char *function, const void *first, CUfunction kernel, CUstream stream,
                       struct shape shape, void **params)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, first, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && kernel == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    pass_call();
    if (result == CUDA_SUCCESS) {
        /* The name must be a copy: a graph or CUPTI may use it after the kernel's library is closed. */
        struct node node = {.name = kept_function(kernel->name)->name,
                            .grid = {shape.x, shape.y, shape.z}};
        if (params != NULL && params[0] != NULL)
            memcpy(&node.kernel_buffer, params[0], sizeof node.kernel_buffer);
        result = submit(stream, node, 0, 0);
    }
    driver_unlock();
    return call_end(function, result);
}

#define LAUNCH_ARGUMENTS                                                                       \
    CUfunction kernel, unsigned int gridX, unsigned int gridY, unsigned int gridZ,             \
        unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes, \
        CUstream stream, void **params
#define UNUSED_SHAPE (void)blockX, (void)blockY, (void)blockZ, (void)sharedBytes
#define GRID ((struct shape){gridX, gridY, gridZ})
#define CONFIGURED ((struct shape){config->gridDimX, config->gridDimY, config->gridDimZ})

CUresult cuLaunchKernel(LAUNCH_ARGUMENTS, void **extra)
{
    UNUSED_SHAPE;
    (void)extra;
    return launch("cuLaunchKernel", kernel, kernel, stream_of(stream, false), GRID, params);
}

CUresult cuLaunchKernel_ptsz(LAUNCH_ARGUMENTS, void **extra)
{
    UNUSED_SHAPE;
    (void)extra;
    return launch("cuLaunchKernel_ptsz", kernel, kernel, stream_of(stream, true), GRID, params);
}

#ifndef LACKING
CUresult cuLaunchCooperativeKernel(LAUNCH_ARGUMENTS)
{
    UNUSED_SHAPE;
    return launch("cuLaunchCooperativeKernel", kernel, kernel, stream_of(stream, false), GRID, params);
}

CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_ARGUMENTS)
{
    UNUSED_SHAPE;
    return launch("cuLaunchCooperativeKernel_ptsz", kernel, kernel, stream_of(stream, true),
                  GRID, params);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction kernel, void **params,
                          void **extra)
{
    (void)extra;
    return launch("cuLaunchKernelEx", config, kernel, stream_of(config->hStream, false),
                  CONFIGURED, params);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction kernel, void **params,
                               void **extra)
{
    (void)extra;
    return launch("cuLaunchKernelEx_ptsz", config, kernel, stream_of(config->hStream, true),
                  CONFIGURED, params);
}
#endif
