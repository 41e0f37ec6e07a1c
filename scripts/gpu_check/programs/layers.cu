// Captures a graph within NVTX ranges and replays it, and launches separate kernels. Layer L launches L + 1 kernels of
// its own function, so the number and the function of a layer's kernels show if the report assigned them to the right
// layer:
//   layers MODE STEPS
// MODE: chain; streams (forked and joined); clone (a clone of the graph is replayed); update (the executable graph is
// updated from a second capture); copies (a copy, a memset and a host function between the layers); child (a graph
// within the graph); children (two graphs, the first of which contains a third); conditional (a conditional node whose
// body runs); explicit (a kernel node that is added without a capture); swapped (like child, but the inner graph is
// replaced in the executable graph).
// Prints the duration of a launch during a capture, measured with captures that have 100 times as many launches. Exits
// with status 3.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nvtx3/nvToolsExt.h>

#define CHECK(call)                                                   \
    do {                                                              \
        cudaError_t error = (call);                                   \
        if (error != cudaSuccess) {                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(error));     \
            exit(1);                                                  \
        }                                                             \
    } while (0)

template <int LAYER> __global__ void of_layer(unsigned *word) { *word = *word * 3 + LAYER; }
__global__ void of_sample(unsigned *word) { *word += 7; }

static cudaStream_t stream, side;
static cudaEvent_t forked, joined, done;
static unsigned *word;
static const char *mode;
static int times = 1, launches;

template <int LAYER> static void layer(cudaStream_t on)
{
    char name[32];
    snprintf(name, sizeof name, "layers.%d", LAYER);
    nvtxRangePushA(name);
    for (int i = 0; i < (LAYER + 1) * times; i++)
        of_layer<LAYER><<<1 + LAYER % 2, 1, 0, on>>>(word);
    launches += (LAYER + 1) * times;
    nvtxRangePop();
    if (strcmp(mode, "copies") == 0) {
        CHECK(cudaMemsetAsync(word + 8, 0, 4, on));
        CHECK(cudaMemcpyAsync(word + 16, word + 8, 4, cudaMemcpyDeviceToDevice, on));
        CHECK(cudaLaunchHostFunc(on, [](void *) {}, nullptr));
    }
}

/* Captures the layers, in an NVTX range of the given name. Adds them to `graph` if it is given, else makes a new
 * graph. */
static cudaGraph_t captured(const char *range = "model", cudaGraph_t graph = nullptr)
{
    bool forks = strcmp(mode, "streams") == 0;
    if (graph == nullptr)
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    else
        CHECK(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
    nvtxRangePushA(range);
    layer<0>(stream);
    if (forks) {
        CHECK(cudaEventRecord(forked, stream));
        CHECK(cudaStreamWaitEvent(side, forked, 0));
    }
    layer<1>(forks ? side : stream);
    layer<2>(stream);
    layer<3>(forks ? side : stream);
    if (forks) {
        CHECK(cudaEventRecord(joined, side));
        CHECK(cudaStreamWaitEvent(stream, joined, 0));
    }
    layer<4>(stream);
    nvtxRangePop();
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

int main(int, char **arguments)
{
    mode = arguments[1];
    int steps = atoi(arguments[2]);
    CHECK(cudaMalloc(&word, 256));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    for (cudaEvent_t *event : {&forked, &joined, &done})
        CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    times = 100;
    CHECK(cudaGraphDestroy(captured())); // the first capture loads modules, so it is not timed
    launches = 0;
    auto began = std::chrono::steady_clock::now();
    cudaGraph_t timed = captured();
    auto took = std::chrono::steady_clock::now() - began;
    printf("%.0f ns a launch\n", (double)std::chrono::nanoseconds(took).count() / launches);
    CHECK(cudaGraphDestroy(timed));
    times = 1;
    cudaGraph_t graph = captured();
    if (strcmp(mode, "clone") == 0) {
        cudaGraph_t clone;
        CHECK(cudaGraphClone(&clone, graph));
        CHECK(cudaGraphDestroy(graph));
        graph = clone;
    }
    cudaGraphNode_t node;
    if (strcmp(mode, "child") == 0 || strcmp(mode, "swapped") == 0) {
        cudaGraph_t child = captured("child");
        CHECK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
        CHECK(cudaGraphDestroy(child));
    }
    if (strcmp(mode, "children") == 0) {
        cudaGraph_t first = captured("first"), second = captured("second"), third = captured("third");
        CHECK(cudaGraphAddChildGraphNode(&node, first, nullptr, 0, third));
        CHECK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, first));
        CHECK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, second));
        for (cudaGraph_t child : {first, second, third})
            CHECK(cudaGraphDestroy(child));
    }
    if (strcmp(mode, "conditional") == 0) {
        cudaGraphConditionalHandle handle;
        CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
        cudaGraphNodeParams params = {};
        params.type = cudaGraphNodeTypeConditional;
        params.conditional.handle = handle;
        params.conditional.type = cudaGraphCondTypeIf;
        params.conditional.size = 1;
#if CUDART_VERSION >= 13000
        CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
#else
        CHECK(cudaGraphAddNode(&node, graph, nullptr, 0, &params));
#endif
        captured("body", params.conditional.phGraph_out[0]);
    }
    if (strcmp(mode, "explicit") == 0) {
        void *arguments[] = {&word};
        cudaKernelNodeParams params = {};
        params.func = (void *)of_sample;
        params.gridDim = params.blockDim = dim3(1);
        params.kernelParams = arguments;
        nvtxRangePushA("added");
        CHECK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
        nvtxRangePop();
    }
    cudaGraphExec_t ready;
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    if (strcmp(mode, "swapped") == 0)
        CHECK(cudaGraphExecChildGraphNodeSetParams(ready, node, captured("other")));
    if (strcmp(mode, "update") == 0) {
        cudaGraphExecUpdateResultInfo info;
        CHECK(cudaGraphExecUpdate(ready, captured(), &info));
    }
    for (int i = 0; i < steps; i++) {
        CHECK(cudaGraphLaunch(ready, stream));
        nvtxRangePushA("sample");
        of_sample<<<1, 1, 0, stream>>>(word);
        of_sample<<<1, 1, 0, stream>>>(word);
        nvtxRangePop();
        CHECK(cudaEventRecord(done, stream));
        CHECK(cudaEventSynchronize(done));
    }
    return 3;
}
