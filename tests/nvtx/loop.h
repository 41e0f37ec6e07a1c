/* A loop of steps. Each step is a range with one graph launch and one wait in it, and one launch after it. So the
 * driver's log shows between which ranges the profiler was started or stopped. */
#ifndef LOOP_H
#define LOOP_H

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

#include "standin.h"

static cudaStream_t stream;
static cudaGraphExec_t graph_exec;

static inline void use_cuda(void)
{
    cudaGraph_t graph;
    if (cudaStreamCreate(&stream) != cudaSuccess ||
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess ||
        cudaStreamEndCapture(stream, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&graph_exec, graph, 0) != cudaSuccess)
        exit(1);
}

static inline void launch(void)
{
    if (cudaGraphLaunch(graph_exec, stream) != cudaSuccess)
        exit(1);
}

static inline void work(void)
{
    launch();
    cudaStreamSynchronize(stream);
}

static inline nvtxEventAttributes_t named(const char *name)
{
    nvtxEventAttributes_t attributes = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    return attributes;
}

static inline nvtxEventAttributes_t registered(nvtxStringHandle_t string)
{
    nvtxEventAttributes_t attributes = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = string;
    return attributes;
}

#endif
