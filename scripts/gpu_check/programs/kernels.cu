// Makes steps of a graph of 20 kernels, 10 separate kernels and a wait for an event. Meanwhile, other threads launch
// kernels and wait on their own streams.
//   kernels THREADS WARM BEFORE WINDOWS AFTER
// THREADS: number of other threads. WARM, BEFORE, WINDOWS, AFTER: number of steps in each of these parts of the run.
// Prints as JSON the duration of a step in each part, and the number of rounds of the other threads. Checks the result
// of every CUDA call: error 719, for example, would mean that the context was destroyed.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define CHECK(call)                                                                  \
    do {                                                                             \
        cudaError_t error = (call);                                                  \
        if (error != cudaSuccess) {                                                  \
            fprintf(stderr, "%s: %d %s\n", #call, error, cudaGetErrorString(error)); \
            exit(9);                                                                 \
        }                                                                            \
    } while (0)

__global__ void in_graph(unsigned long long *x) { *x = *x * 3 + 1; }
__global__ void by_itself(unsigned long long *x) { *x = *x * 5 + 7; }
__global__ void of_others(unsigned long long *x) { *x += 1; }

static std::atomic<bool> ends;
static std::atomic<unsigned long> rounds;

static void other()
{
    cudaStream_t stream;
    unsigned long long *x, made = 0, read = 0;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&x, sizeof *x));
    CHECK(cudaMemsetAsync(x, 0, sizeof *x, stream));
    while (!ends) {
        for (int i = 0; i < 10; i++)
            of_others<<<1, 1, 0, stream>>>(x);
        made += 10;
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(stream));
        rounds++;
    }
    CHECK(cudaMemcpyAsync(&read, x, sizeof read, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (read != made) {
        fprintf(stderr, "a thread launched %llu kernels, and %llu ran\n", made, read);
        exit(9);
    }
}

int main(int, char **arguments)
{
    int threads = atoi(arguments[1]);
    unsigned long long *x;
    cudaStream_t stream;
    cudaEvent_t done;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CHECK(cudaMalloc(&x, sizeof *x));
    CHECK(cudaMemset(x, 0, sizeof *x));
    by_itself<<<1, 1, 0, stream>>>(x);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 20; i++)
        in_graph<<<1, 1, 0, stream>>>(x);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<std::thread> started;
    for (int i = 0; i < threads; i++)
        started.emplace_back(other);
    const char *names[] = {"warm", "before", "windows", "after"};
    printf("{");
    for (int part = 0; part < 4; part++) {
        std::vector<double> took;
        auto began = std::chrono::steady_clock::now();
        unsigned long had = rounds;
        for (int i = 0; i < atoi(arguments[2 + part]); i++) {
            auto at = std::chrono::steady_clock::now();
            CHECK(cudaGraphLaunch(exec, stream));
            for (int k = 0; k < 10; k++)
                by_itself<<<1, 1, 0, stream>>>(x);
            CHECK(cudaEventRecord(done, stream));
            CHECK(cudaEventSynchronize(done));
            took.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - at).count());
        }
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        double others = (rounds - had) / seconds;
        std::sort(took.begin(), took.end());
        printf("\"%s\": {\"us\": %.3f, \"quick\": %.3f, \"others\": %.1f, \"seconds\": %.3f}, ", names[part],
               took.empty() ? 0 : took[took.size() / 2], took.empty() ? 0 : took[took.size() / 10], others, seconds);
    }
    ends = true;
    for (auto &thread : started)
        thread.join();
    CHECK(cudaDeviceSynchronize());
    printf("\"errors\": []}\n");
    return 0;
}
