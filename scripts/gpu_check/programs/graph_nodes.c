/* Shows how CUPTI numbers the nodes of a CUDA graph. Makes one graph of one kind, replays it twice while kernels
 * are recorded, and prints each node in the order of creation and each kernel that ran:
 *   graph_nodes CASE CUPTI [CUDA]
 * CASE: plain, others, empty, child, grandchild, children, if, while, relaxed, thread-local, global.
 * CUPTI: the path of libcupti. CUDA: the toolkit's folder, only for `while`, whose kernel needs the toolkit's
 * device runtime.
 *   made GRAPH INDEX KIND NAME ID  a node: number INDEX of GRAPH (root, or root/1 for the graph in root's node 1),
 * and CUPTI's number ID
 *   exec NUMBER                    CUPTI's number of the executable graph that is replayed
 *   ran NAME GRAPH EXEC NODE       a kernel: graphId, and the upper and lower half of graphNodeId
 * A kernel's name is k and its number, in the order in which kernels were created. Exits with status 3. If a call
 * fails, prints the call. */
#define _GNU_SOURCE
#ifdef STANDIN
#include "standin_driver.h"
#define CUDA_VERSION 12030
typedef CUresult CUptiResult;
#else
#include <cuda.h>
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                       \
    do {                                                                  \
        int error = (int)(call);                                          \
        if (error != 0) {                                                 \
            printf("failed %s: %d\n", #call, error);                      \
            exit(2);                                                      \
        }                                                                 \
    } while (0)

enum { KERNELS = 256, THREADS = 4, OF_THREAD = 40, RECORDS = 4096, KERNEL_RECORD = 10, BYTES = 1 << 20 };

static CUcontext context;
static CUfunction functions[KERNELS];
static int next_kernel;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* CUPTI's functions are looked up by name, because CUPTI's headers need parts of the toolkit
 * that may be missing. */
static int (*enable)(int), (*flush)(uint32_t), (*next_record)(uint8_t *, size_t, uint8_t **);
static int (*register_callbacks)(void (*)(uint8_t **, size_t *, size_t *),
                                 void (*)(CUcontext, uint32_t, uint8_t *, size_t, size_t));
static int (*exec_id)(CUgraphExec, uint32_t *), (*node_id)(CUgraphNode, uint64_t *);

static struct ran {
    const char *name;
    uint32_t graph;
    uint64_t node;
} records[RECORDS];
static int record_count;

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *buffer = aligned_alloc(16, BYTES);
    *size = BYTES;
    *most = 0;
}

/* Reads the records that CUPTI has completed in a buffer. The layout is that of CUpti_ActivityKernel9; the records
 * of later CUDA versions begin with the same fields. */
static void completed(CUcontext unused, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)unused, (void)stream, (void)size;
    uint8_t *record = NULL;
    while (next_record(buffer, valid, &record) == 0) {
        uint32_t kind;
        memcpy(&kind, record, sizeof kind);
        if (kind != KERNEL_RECORD || record_count == RECORDS)
            continue;
        struct ran *ran = &records[record_count++];
        memcpy(&ran->name, record + 104, sizeof ran->name);
        memcpy(&ran->node, record + 144, sizeof ran->node);
        memcpy(&ran->graph, record + 156, sizeof ran->graph);
    }
    free(buffer);
}

static void open_cupti(const char *path)
{
    void *cupti = dlopen(path, RTLD_NOW);
    if (cupti == NULL) {
        printf("failed %s\n", dlerror());
        exit(2);
    }
    *(void **)&enable = dlsym(cupti, "cuptiActivityEnable");
    *(void **)&flush = dlsym(cupti, "cuptiActivityFlushAll");
    *(void **)&next_record = dlsym(cupti, "cuptiActivityGetNextRecord");
    *(void **)&register_callbacks = dlsym(cupti, "cuptiActivityRegisterCallbacks");
    *(void **)&exec_id = dlsym(cupti, "cuptiGetGraphExecId");
    *(void **)&node_id = dlsym(cupti, "cuptiGetGraphNodeId");
    CHECK(register_callbacks(requested, completed));
    CHECK(enable(KERNEL_RECORD));
}

static void load_kernels(void)
{
    static char text[KERNELS * 64];
    size_t length = (size_t)sprintf(text, ".version 6.3\n.target sm_75\n.address_size 64\n");
    for (int i = 0; i < KERNELS; i++)
        length += (size_t)sprintf(text + length, ".visible .entry k%d()\n{\nret;\n}\n", i);
    CUmodule module;
    CHECK(cuModuleLoadData(&module, text));
    for (int i = 0; i < KERNELS; i++) {
        char name[16];
        sprintf(name, "k%d", i);
        CHECK(cuModuleGetFunction(&functions[i], module, name));
    }
}

/* Prints a node that was just added to its graph: its index in the graph, and the number that CUPTI gives it. */
static void made(const char *graph, int index, const char *kind, const char *name, CUgraphNode node)
{
    uint64_t id = 0;
    int error = node_id != NULL && node != NULL ? node_id(node, &id) : -1;
    printf("made %s %d %s %s %s%llu:%llu\n", graph, index, kind, name, error ? "?" : "", (unsigned long long)(id >> 32),
           (unsigned long long)(id & 0xffffffff));
}

/* Prints the nodes of a captured graph in the order in which the driver lists them, with the numbers that CUPTI
 * gives them. */
static void print_nodes(const char *name, CUgraph graph)
{
    size_t count = 0;
    CHECK(cuGraphGetNodes(graph, NULL, &count));
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes);
    CHECK(cuGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        char kind[16];
        CHECK(cuGraphNodeGetType(nodes[i], &type));
        sprintf(kind, "type%d", (int)type);
        made(name, (int)i, kind, "-", nodes[i]);
    }
    free(nodes);
}

/* Adds a kernel node that depends on the node `*last`, and sets `*last` to the new node. */
static void add_kernel(const char *name, CUgraph graph, int index, CUgraphNode *last)
{
    CUDA_KERNEL_NODE_PARAMS params;
    CUgraphNode before = *last;
    char kernel[16];
    memset(&params, 0, sizeof params);
    sprintf(kernel, "k%d", next_kernel);
    params.func = functions[next_kernel++];
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    CHECK(cuGraphAddKernelNode(last, graph, before ? &before : NULL, before ? 1 : 0, &params));
    made(name, index, "kernel", kernel, *last);
}

static void launch(CUstream stream)
{
    pthread_mutex_lock(&lock);
    CUfunction function = functions[next_kernel++];
    pthread_mutex_unlock(&lock);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static CUgraph new_graph(void)
{
    CUgraph graph;
    CHECK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraph plain(int kernels, const char *name)
{
    CUgraph graph = new_graph();
    CUgraphNode last = NULL;
    for (int i = 0; i < kernels; i++)
        add_kernel(name, graph, i, &last);
    return graph;
}

static void host_function(void *unused)
{
    (void)unused;
}

/* Captures a graph in which kernels alternate with nodes of all other types, and prints its nodes in the driver's
 * order. */
static CUgraph others(CUstream stream)
{
    CUgraph graph;
    CUdeviceptr memory, taken;
    CUevent event;
    static unsigned char words[16];
    CHECK(cuMemAlloc(&memory, 64));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch(stream);
    CHECK(cuLaunchHostFunc(stream, host_function, NULL));
    launch(stream);
    CHECK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    launch(stream);
    CHECK(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    launch(stream);
    CHECK(cuMemsetD8Async(memory, 1, 16, stream));
    launch(stream);
    CHECK(cuMemcpyDtoDAsync(memory + 32, memory, 16, stream));
    CHECK(cuMemcpyHtoDAsync(memory, words, 16, stream));
    launch(stream);
    CHECK(cuMemAllocAsync(&taken, 64, stream));
    launch(stream);
    CHECK(cuMemFreeAsync(taken, stream));
    launch(stream);
    CHECK(cuStreamEndCapture(stream, &graph));
    print_nodes("root", graph);
    return graph;
}

/* Makes a graph of k0, an empty node, and k1. */
static CUgraph empty(void)
{
    CUgraph graph = new_graph();
    CUgraphNode last = NULL, between;
    add_kernel("root", graph, 0, &last);
    CHECK(cuGraphAddEmptyNode(&between, graph, &last, 1));
    made("root", 1, "empty", "-", between);
    add_kernel("root", graph, 2, &between);
    return graph;
}

/* Makes a graph of `before` kernels, the graph `child` as a node, and `after` kernels. */
static CUgraph around(const char *name, const char *inner, CUgraph child, int before, int after)
{
    CUgraph graph = new_graph();
    CUgraphNode last = NULL, node;
    for (int i = 0; i < before; i++)
        add_kernel(name, graph, i, &last);
    CHECK(cuGraphAddChildGraphNode(&node, graph, last ? &last : NULL, last ? 1 : 0, child));
    made(name, before, "child", inner, node);
    for (int i = 0; i < after; i++)
        add_kernel(name, graph, before + 1 + i, &node);
    return graph;
}

/* Makes a graph of k0, a first child graph, k1, a second child graph, and k2. The first child contains another graph
 * and an empty node. */
static CUgraph children(void)
{
    CUgraph graph = new_graph(), first = around("root/1", "root/1/1", plain(2, "root/1/1"), 1, 1), second = plain(2, "root/3");
    CUgraphNode last = NULL, empty;
    CHECK(cuGraphAddEmptyNode(&empty, first, NULL, 0));
    made("root/1", 3, "empty", "-", empty);
    add_kernel("root", graph, 0, &last);
    CHECK(cuGraphAddChildGraphNode(&last, graph, NULL, 0, first));
    made("root", 1, "child", "root/1", last);
    add_kernel("root", graph, 2, &last);
    CHECK(cuGraphAddChildGraphNode(&last, graph, NULL, 0, second));
    made("root", 3, "child", "root/3", last);
    add_kernel("root", graph, 4, &last);
    return graph;
}

#if CUDA_VERSION >= 12040
/* Returns a kernel that sets the condition of a loop to 0, which ends the loop. The kernel is linked to the device
 * runtime, which it calls. */
static CUfunction stop_kernel(const char *cuda)
{
    static const char text[] = ".version 8.3\n.target sm_75\n.address_size 64\n"
                               ".extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);\n"
                               ".visible .entry stop(.param .u64 of)\n{\n.reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n"
                               "ld.param.u64 %rd1, [of];\nmov.u32 %r1, 0;\n"
                               "{ .param .b64 p0; st.param.b64 [p0], %rd1; .param .b32 p1; st.param.b32 [p1], %r1;\n"
                               "call.uni cudaGraphSetConditional, (p0, p1); }\nret;\n}\n";
    static char said[8192];
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {said, (void *)(uintptr_t)sizeof said};
    char library[4096];
    CUlinkState link;
    CUmodule module;
    CUfunction stop;
    void *image;
    size_t bytes;
    snprintf(library, sizeof library, "%s/lib64/libcudadevrt.a", cuda);
    CHECK(cuLinkCreate(2, options, values, &link));
    int error = (int)cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, sizeof text, "stop", 0, NULL, NULL);
    if (error == 0)
        error = (int)cuLinkAddFile(link, CU_JIT_INPUT_LIBRARY, library, 0, NULL, NULL);
    if (error == 0)
        error = (int)cuLinkComplete(link, &image, &bytes);
    if (error != 0) {
        printf("failed to link %s: %d: %s\n", library, error, said);
        exit(2);
    }
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&stop, module, "stop"));
    return stop;
}

/* Makes a graph of kernel k0, a conditional node and another kernel. The node's body has three kernels and runs
 * once. If the node is a loop, its body also has the kernel that ends the loop. */
static CUgraph conditional(CUstream stream, int loops, const char *cuda)
{
    CUgraph graph = new_graph(), body;
    CUgraphNode last = NULL, node;
    CUgraphConditionalHandle handle;
    CUgraphNodeParams params;
    CUfunction stop = loops ? stop_kernel(cuda) : NULL;
    add_kernel("root", graph, 0, &last);
    CHECK(cuGraphConditionalHandleCreate(&handle, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = loops ? CU_GRAPH_COND_TYPE_WHILE : CU_GRAPH_COND_TYPE_IF;
    params.conditional.size = 1;
    params.conditional.ctx = context;
#if CUDA_VERSION >= 13000
    CHECK(cuGraphAddNode(&node, graph, &last, NULL, 1, &params));
#else
    CHECK(cuGraphAddNode(&node, graph, &last, 1, &params));
#endif
    made("root", 1, loops ? "while" : "if", "root/1", node);
    body = params.conditional.phGraph_out[0];
    CHECK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 3; i++)
        launch(stream);
    if (loops) {
        void *arguments[] = {&handle};
        CHECK(cuLaunchKernel(stop, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    }
    CHECK(cuStreamEndCapture(stream, NULL));
    print_nodes("root/1", body);
    add_kernel("root", graph, 2, &node);
    return graph;
}
#endif

/* For the cases with several threads: the threads wait for each other at `barrier`, and then each captures one
 * graph in `thread_mode`. */
static pthread_barrier_t barrier;
static CUstreamCaptureMode thread_mode;
static CUgraph of_thread[THREADS];

static void *captures(void *number)
{
    CUstream stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&barrier);
    CHECK(cuStreamBeginCapture(stream, thread_mode));
    for (int i = 0; i < OF_THREAD; i++)
        CHECK(cuLaunchKernel(functions[(int)(intptr_t)number * OF_THREAD + i], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CHECK(cuStreamEndCapture(stream, &of_thread[(intptr_t)number]));
    return NULL;
}

static void replay(CUgraph graph, CUstream stream)
{
    CUgraphExec exec;
    uint32_t number = 0;
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    if (exec_id == NULL || exec_id(exec, &number) != 0)
        printf("exec ?\n");
    else
        printf("exec %u\n", number);
    for (int i = 0; i < 2; i++) {
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuStreamSynchronize(stream));
    }
}

static void threads(CUstreamCaptureMode mode, CUstream stream)
{
    pthread_t all[THREADS];
    thread_mode = mode;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, captures, (void *)i));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(all[i], NULL));
    for (int i = 0; i < THREADS; i++) {
        char name[16], kernel[16];
        sprintf(name, "root%d", i);
        for (int node = 0; node < OF_THREAD; node++) {
            sprintf(kernel, "k%d", i * OF_THREAD + node);
            made(name, node, "kernel", kernel, NULL);
        }
        replay(of_thread[i], stream);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "plain";
    CUdevice device;
    CUstream stream;
    CUgraph graph = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(argc < 3);
    CHECK(cuInit(0));
    open_cupti(argv[2]);
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    load_kernels();

    if (strcmp(kind, "plain") == 0)
        graph = plain(4, "root");
    else if (strcmp(kind, "others") == 0)
        graph = others(stream);
    else if (strcmp(kind, "empty") == 0)
        graph = empty();
    else if (strcmp(kind, "child") == 0)
        graph = around("root", "root/2", plain(3, "root/2"), 2, 2);
    else if (strcmp(kind, "grandchild") == 0)
        graph = around("root", "root/1", around("root/1", "root/1/2", plain(2, "root/1/2"), 2, 1), 1, 2);
    else if (strcmp(kind, "children") == 0)
        graph = children();
#if CUDA_VERSION >= 12040
    else if (strcmp(kind, "if") == 0 || strcmp(kind, "while") == 0)
        graph = conditional(stream, kind[0] == 'w', argc > 3 ? argv[3] : "/usr/local/cuda");
#endif
    else if (strcmp(kind, "relaxed") == 0)
        threads(CU_STREAM_CAPTURE_MODE_RELAXED, stream);
    else if (strcmp(kind, "thread-local") == 0)
        threads(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, stream);
    else if (strcmp(kind, "global") == 0)
        threads(CU_STREAM_CAPTURE_MODE_GLOBAL, stream);
    else {
        printf("failed %s: not with this version of CUDA\n", kind);
        return 2;
    }
    if (graph != NULL)
        replay(graph, stream);
    CHECK(cuCtxSynchronize());
    CHECK(flush(0));
    for (int i = 0; i < record_count; i++)
        printf("ran %s %u %llu %llu\n", records[i].name, records[i].graph, (unsigned long long)(records[i].node >> 32),
               (unsigned long long)(records[i].node & 0xffffffff));
    return 3;
}
