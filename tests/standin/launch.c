/* Kernel launches, and graphs of them. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static bool add(CUgraph graph, struct node node)
{
    if (graph->count == graph->room) {
        size_t room = graph->room == 0 ? 8 : 2 * graph->room;
        struct node *nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (nodes == NULL)
            return false;
        graph->nodes = nodes;
        graph->room = room;
    }
    graph->nodes[graph->count++] = node;
    return true;
}

CUresult submit(CUstream stream, struct node node, unsigned int number)
{
    if (tool_has_destroyed())
        return CUDA_ERROR_LAUNCH_FAILED;
    switch (stream->capture) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
        return add(stream->graph, node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    default:
        tool_run(stream, &node, number);
        switch (node.kind) {
        case COPY_NODE:
            memmove(node.to, node.from, node.bytes);
            break;
        case SET_NODE:
            memset(node.to, node.value, node.bytes);
            break;
        case KERNEL_NODE:
            run_kernel(node.kernel_buffer);
        }
        work(stream);
        return CUDA_SUCCESS;
    }
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    free(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUgraphExec made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < graph->count; i++)
        if (!add(&made->graph, graph->nodes[i])) {
            cuGraphExecDestroy(made);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    *exec = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (exec == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    free(exec->graph.nodes);
    free(exec);
    return CUDA_SUCCESS;
}

static CUresult launch_graph(const char *function, CUgraphExec exec, CUstream stream)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, exec, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && exec == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    pass_call();
    if (result == CUDA_SUCCESS)
        for (size_t i = 0; i < exec->graph.count && result == CUDA_SUCCESS; i++)
            result = submit(stream, exec->graph.nodes[i], (unsigned int)i + 1);
    driver_unlock();
    return call_end(function, result);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch_graph("cuGraphLaunch", exec, stream_of(stream, false));
}

#ifndef LACKING
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch_graph("cuGraphLaunch_ptsz", exec, stream_of(stream, true));
}
#endif

static CUresult launch(const char *function, const void *first, CUfunction kernel, CUstream stream,
                       void **params)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, first, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && kernel == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    pass_call();
    if (result == CUDA_SUCCESS) {
        /* A graph and CUPTI may need it when the library that has the kernel is closed. */
        struct node node = {.name = kept_function(kernel->name)->name};
        if (params != NULL && params[0] != NULL)
            memcpy(&node.kernel_buffer, params[0], sizeof node.kernel_buffer);
        result = submit(stream, node, 0);
    }
    driver_unlock();
    return call_end(function, result);
}

#define LAUNCH_ARGUMENTS                                                                       \
    CUfunction kernel, unsigned int gridX, unsigned int gridY, unsigned int gridZ,             \
        unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes, \
        CUstream stream, void **params
#define UNUSED_SHAPE                                                                    \
    (void)gridX, (void)gridY, (void)gridZ, (void)blockX, (void)blockY, (void)blockZ, \
        (void)sharedBytes

CUresult cuLaunchKernel(LAUNCH_ARGUMENTS, void **extra)
{
    UNUSED_SHAPE;
    (void)extra;
    return launch("cuLaunchKernel", kernel, kernel, stream_of(stream, false), params);
}

CUresult cuLaunchKernel_ptsz(LAUNCH_ARGUMENTS, void **extra)
{
    UNUSED_SHAPE;
    (void)extra;
    return launch("cuLaunchKernel_ptsz", kernel, kernel, stream_of(stream, true), params);
}

#ifndef LACKING
CUresult cuLaunchCooperativeKernel(LAUNCH_ARGUMENTS)
{
    UNUSED_SHAPE;
    return launch("cuLaunchCooperativeKernel", kernel, kernel, stream_of(stream, false), params);
}

CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_ARGUMENTS)
{
    UNUSED_SHAPE;
    return launch("cuLaunchCooperativeKernel_ptsz", kernel, kernel, stream_of(stream, true),
                  params);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction kernel, void **params,
                          void **extra)
{
    (void)extra;
    return launch("cuLaunchKernelEx", config, kernel, stream_of(config->hStream, false), params);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction kernel, void **params,
                               void **extra)
{
    (void)extra;
    return launch("cuLaunchKernelEx_ptsz", config, kernel, stream_of(config->hStream, true),
                  params);
}
#endif
