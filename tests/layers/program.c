/* Makes steps, each with a graph that was captured within scopes (NVTX ranges) and one separate kernel. Each kernel
 * has the name of the scope that it is launched in, so a test can compare the kernel's scope in the record with its
 * name.
 *   program MODE STEPS
 * MODE: chain        one stream
 *       copies       the same, with copies in each layer
 *       others       with host functions, events of other streams, and memory that is allocated and freed in each layer
 *       streams      two streams, forked and joined
 *       shared       two threads capture into one graph at once
 *       threads      two threads capture one graph each at once
 *       clone        the graph that runs is made from a copy
 *       update       the graph that runs is updated from a graph with the same scopes
 *       moved        the same, from a graph with other scopes in the second layer
 *       again        every third step has its own graph, made at the address of the previous one
 *       failed       a capture that fails comes first
 *       child        the graph contains another graph
 *       children     the graph is a copy of a graph that contains two graphs, the first of which contains a third
 *       swapped      like child, but the inner graph is replaced in the executable graph
 *       conditional  the graph has a conditional node with two bodies, and the second one runs
 *       empty        the graph has an empty node
 *       explicit     the graph has a kernel node that was added within a scope instead of being captured
 *       grown        the graph was captured in two parts, the second into the existing graph
 *       deep         some scopes are nested too deep */
#define _GNU_SOURCE
#define STANDIN
#include "standin_driver.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                   \
    do {                                                              \
        int error = (int)(call);                                      \
        if (error != 0) {                                             \
            printf("line %d: error %d\n", __LINE__, error);           \
            exit(3);                                                  \
        }                                                             \
    } while (0)

static CUcontext context;
static CUmodule module;
static CUdeviceptr buffer;
static CUstream stream, side;
static CUevent forked, joined, done;
static unsigned int grid = 1;

/* Launches a kernel named `name` on the stream `on`, within a nested NVTX range for each part of the name. */
static void launch_on(CUstream on, const char *name)
{
    char parts[128], *rest = parts, *part;
    int depth = 0;
    snprintf(parts, sizeof parts, "%s", name);
    while ((part = strsep(&rest, "/")) != NULL) {
        nvtxRangePushA(part);
        depth++;
    }
    CUfunction kernel;
    CHECK(cuModuleGetFunction(&kernel, module, name));
    void *params[] = {&buffer};
    if (grid % 2 == 0) {
        CUlaunchConfig config = {.gridDimX = grid, .gridDimY = 1, .gridDimZ = 1, .hStream = on};
        CHECK(cuLaunchKernelEx(&config, kernel, params, NULL));
    } else {
        CHECK(cuLaunchKernel(kernel, grid, 1, 1, 32, 1, 1, 0, on, params, NULL));
    }
    grid++;
    while (depth-- > 0)
        nvtxRangePop();
}

static void launch(const char *name)
{
    launch_on(stream, name);
}

static void begin(CUstream on)
{
    CHECK(cuStreamBeginCapture_v2(on, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static int copies, others;

static void nothing(void *unused)
{
    (void)unused;
}

/* Adds nodes that are not kernels, copies or memsets. */
static void other_nodes(void)
{
    CUdeviceptr memory;
    CHECK(cuLaunchHostFunc(stream, nothing, NULL));
    CHECK(cuMemAllocAsync(&memory, 64, stream));
    CHECK(cuEventRecordWithFlags(forked, stream, CU_EVENT_RECORD_EXTERNAL));
    CHECK(cuStreamWaitEvent(stream, joined, CU_EVENT_WAIT_EXTERNAL));
    CHECK(cuMemFreeAsync(memory, stream));
}

static void layers(const char *second)
{
    char name[64];
    grid = 1;
    launch("model/embed");
    for (int layer = 0; layer < 3; layer++) {
        snprintf(name, sizeof name, "model/layers.%d/attn", layer);
        launch(name);
        CHECK(cuMemsetD8Async(buffer, 1, 8, stream));
        if (copies) {
            static unsigned char words[8];
            CHECK(cuMemcpyDtoDAsync(buffer, buffer, 8, stream));
            CHECK(cuMemcpyHtoDAsync(buffer, words, 8, stream));
            CHECK(cuMemcpyDtoHAsync(words, buffer, 8, stream));
        }
        if (others)
            other_nodes();
        snprintf(name, sizeof name, "model/layers.%d/%s", layer, layer == 1 ? second : "mlp");
        launch(name);
    }
    launch("model/head");
}

static CUgraph end(CUstream of)
{
    CUgraph graph;
    CHECK(cuStreamEndCapture(of, &graph));
    return graph;
}

static CUgraph captured(const char *second)
{
    begin(stream);
    layers(second);
    return end(stream);
}

static CUgraph two_streams(void)
{
    begin(stream);
    grid = 1;
    launch("model/before");
    CHECK(cuEventRecord(forked, stream));
    CHECK(cuStreamWaitEvent(side, forked, 0));
    for (int i = 0; i < 4; i++) {
        launch("model/main");
        launch_on(side, "model/side");
    }
    CHECK(cuEventRecord(joined, side));
    CHECK(cuStreamWaitEvent(stream, joined, 0));
    launch("model/after");
    return end(stream);
}

static pthread_barrier_t both;

static void *on_side(void *unused)
{
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&both);
    for (int i = 0; i < 300; i++)
        launch_on(side, "model/other");
    pthread_barrier_wait(&both);
    return NULL;
}

static CUgraph shared(void)
{
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    begin(stream);
    CHECK(cuEventRecord(forked, stream));
    CHECK(cuStreamWaitEvent(side, forked, 0));
    CHECK(pthread_create(&thread, NULL, on_side, NULL));
    pthread_barrier_wait(&both);
    for (int i = 0; i < 300; i++)
        launch("model/one");
    pthread_barrier_wait(&both);
    CHECK(pthread_join(thread, NULL));
    return end(stream);
}

static void *captures(void *graph)
{
    CHECK(cuCtxSetCurrent(context));
    begin(side);
    pthread_barrier_wait(&both);
    for (int i = 0; i < 300; i++)
        launch_on(side, i % 3 == 0 ? "other/third" : "other");
    pthread_barrier_wait(&both);
    *(CUgraph *)graph = end(side);
    return NULL;
}

static CUgraph two_threads(CUgraph *second)
{
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    begin(stream);
    CHECK(pthread_create(&thread, NULL, captures, second));
    pthread_barrier_wait(&both);
    for (int i = 0; i < 300; i++)
        launch(i % 2 == 0 ? "model/even" : "model");
    pthread_barrier_wait(&both);
    CUgraph graph = end(stream);
    CHECK(pthread_join(thread, NULL));
    return graph;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "chain";
    int steps = argc > 2 ? atoi(argv[2]) : 20;
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, "kernels"));
    CHECK(cuMemAlloc_v2(&buffer, 64));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));

    CUgraph graph, second = NULL;
    CUgraphNode child_node;
    CUgraphExec exec, other = NULL;
    copies = strcmp(mode, "copies") == 0;
    others = strcmp(mode, "others") == 0;
    if (strcmp(mode, "failed") == 0) {
        begin(stream);
        launch("model/never");
        launch("model/never");
        cuStreamSynchronize(stream);
        if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
            return 4;
    }
    if (strcmp(mode, "streams") == 0) {
        graph = two_streams();
    } else if (strcmp(mode, "shared") == 0) {
        graph = shared();
    } else if (strcmp(mode, "threads") == 0) {
        graph = two_threads(&second);
    } else if (strcmp(mode, "grown") == 0) {
        graph = captured("mlp");
        CHECK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
        launch("model/tail");
        graph = end(stream);
    } else if (strcmp(mode, "deep") == 0) {
        begin(stream);
        launch("shallow");
        for (int i = 0; i < 70; i++)
            nvtxRangePushA("deep");
        launch("unknown");
        for (int i = 0; i < 70; i++)
            nvtxRangePop();
        launch("shallow");
        graph = end(stream);
    } else {
        graph = captured("mlp");
    }
    if (strcmp(mode, "child") == 0 || strcmp(mode, "swapped") == 0) {
        begin(stream);
        launch("inner");
        launch("inner");
        CUgraph child = end(stream);
        CHECK(cuGraphAddChildGraphNode(&child_node, graph, NULL, 0, child));
        CHECK(cuGraphDestroy(child));
    }
    if (strcmp(mode, "children") == 0) {
        CUgraph inner = captured("moe"), outer = captured("mlp");
        CHECK(cuGraphAddChildGraphNode(&child_node, outer, NULL, 0, inner));
        CHECK(cuGraphAddChildGraphNode(&child_node, graph, NULL, 0, outer));
        CHECK(cuGraphAddChildGraphNode(&child_node, graph, NULL, 0, inner));
        CHECK(cuGraphDestroy(outer));
        CHECK(cuGraphDestroy(inner));
    }
    if (strcmp(mode, "conditional") == 0) {
        CUgraphConditionalHandle handle;
        CUgraphNode node;
        CHECK(cuGraphConditionalHandleCreate(&handle, graph, NULL, 0, CU_GRAPH_COND_ASSIGN_DEFAULT));
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                    .conditional = {.handle = handle, .type = CU_GRAPH_COND_TYPE_IF, .size = 2}};
        CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
        for (int body = 0; body < 2; body++) {
            CHECK(cuStreamBeginCaptureToGraph(stream, params.conditional.phGraph_out[body], NULL, NULL, 0,
                                              CU_STREAM_CAPTURE_MODE_RELAXED));
            launch(body == 0 ? "model/never" : "model/otherwise");
            CHECK(cuStreamEndCapture(stream, NULL));
        }
    }
    if (strcmp(mode, "empty") == 0) {
        CUgraphNode node;
        CHECK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    }
    if (strcmp(mode, "explicit") == 0) {
        CUgraphNode node;
        CUfunction kernel;
        CHECK(cuModuleGetFunction(&kernel, module, "added"));
        CUDA_KERNEL_NODE_PARAMS params = {.func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1};
        nvtxRangePushA("added");
        CHECK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
        nvtxRangePop();
    }
    if (strcmp(mode, "clone") == 0 || strcmp(mode, "children") == 0) {
        CUgraph clone;
        CHECK(cuGraphClone(&clone, graph));
        CHECK(cuGraphDestroy(graph));
        graph = clone;
    }
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    if (strcmp(mode, "swapped") == 0) {
        begin(stream);
        launch("other");
        launch("other");
        CUgraph child = end(stream);
        CHECK(cuGraphExecChildGraphNodeSetParams(exec, child_node, child));
        CHECK(cuGraphDestroy(child));
    }
    if (second != NULL) {
        CHECK(cuGraphInstantiateWithFlags(&other, second, 0));
        CHECK(cuGraphDestroy(second));
    }
    if (strcmp(mode, "update") == 0 || strcmp(mode, "moved") == 0) {
        graph = captured(mode[0] == 'm' ? "moe" : "mlp");
        CHECK(cuGraphExecUpdate(exec, graph, NULL));
        CHECK(cuGraphDestroy(graph));
    }
    for (int step = 0; step < steps; step++) {
        if (strcmp(mode, "again") == 0 && step % 3 == 2) {
            char name[32];
            snprintf(name, sizeof name, "turn.%d", step);
            CHECK(cuGraphExecDestroy(exec));
            graph = captured(name);
            CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
            CHECK(cuGraphDestroy(graph));
        }
        CHECK(cuGraphLaunch(exec, stream));
        if (other != NULL)
            CHECK(cuGraphLaunch(other, stream));
        grid = 1;
        launch("sample/logits");
        launch("sample/logits");
        launch("sample");
        CHECK(cuEventRecord(done, stream));
        CHECK(cuEventSynchronize(done));
    }
    CHECK(cuGraphExecDestroy(exec));
    printf("done\n");
    return 7;
}
