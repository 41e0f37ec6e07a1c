// Makes steps. A step launches a graph of eight kernels and one separate kernel, and then waits for an event:
//   consumer USE FROM TO STEPS
// The program has its own profiler (tests/kernels/profiler.c), which records kernels from step FROM until before
// step TO. USE names the parts of CUPTI that the profiler uses: both, buffers, subscription, or none.
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void profiler_begins(const char *use);
extern "C" void profiler_ends(void);

#define CHECK(call)                                                                            \
    do {                                                                                       \
        cudaError_t error = (call);                                                            \
        if (error != cudaSuccess) {                                                            \
            printf("%s: %s\n", #call, cudaGetErrorString(error));                              \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

__global__ void in_graph(unsigned long long *word) { *word = *word * 3 + 1; }
__global__ void by_itself(unsigned long long *word) { *word += 7; }

int main(int count, char **arguments)
{
    if (count != 5)
        return 2;
    const char *use = arguments[1];
    int from = atoi(arguments[2]), to = atoi(arguments[3]), steps = atoi(arguments[4]);
    unsigned long long *word, result;
    cudaStream_t stream;
    cudaEvent_t done;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaMalloc(&word, sizeof *word));
    CHECK(cudaMemset(word, 0, sizeof *word));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 8; i++)
        in_graph<<<1, 1, 0, stream>>>(word);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < steps; i++) {
        if (i == from && strcmp(use, "none") != 0)
            profiler_begins(use);
        if (i == to && strcmp(use, "none") != 0)
            profiler_ends();
        CHECK(cudaGraphLaunch(ready, stream));
        by_itself<<<1, 1, 0, stream>>>(word);
        CHECK(cudaEventRecord(done, stream));
        CHECK(cudaEventSynchronize(done));
    }
    CHECK(cudaMemcpy(&result, word, sizeof result, cudaMemcpyDeviceToHost));
    printf("result: %llu\n", result);
    return 0;
}
