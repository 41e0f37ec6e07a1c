// A small model of an engine's loop, with the runtime API. It is built in several ways: with shared and static cudart,
// and with per-thread streams.
//
//   loop [--steps N] [--graphs G] [--device D] [--devices D] [--pause-after I] [--end STYLE] [--blocks] [--decode]
//        [--ranges] [--kernels K] [--waits W] [--launches L] [--times FILE]
//
// Step i launches G graphs (default 1; 0: none) of K kernels each (default 3), then one kernel with a grid of i + 1
// blocks. So a profile shows which steps it contains. Then the step makes the mark i and waits for its stream.
//   --devices D      D threads with one device each make the steps in turn
//   --pause-after I  sleeps half a second after step I
//   --end STYLE      return, exit, _exit, quick_exit, or term (a SIGTERM handler that calls _exit); status 3
//   --blocks         for throughput: reads numbers of seconds from standard input, one per line; for each, makes
//                    steps for that time, and prints their number, their duration and their processor time
//   --ranges         an NVTX range `step I` around each step
//   --decode         the graph has 20 kernels of about 20 us, like the decode step of a small model
//   --waits W, --launches L  each step also launches L kernels one by one, with W waits among them, as in llama.cpp
//   --times FILE     writes the time when each step began, in ns, as 64-bit numbers
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

#include "truth.h"

static const int STATUS = 3;

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            fprintf(stderr, "loop: %s: %s\n", #call, cudaGetErrorString(error));                 \
            _exit(1);                                                                            \
        }                                                                                        \
    } while (0)

__global__ void tick(unsigned long long *count) {
    if (threadIdx.x == 0) atomicAdd(count, 1ull);
}

// Arithmetic in which each operation needs the result of the operation before it. The arithmetic is the same in every
// step, so the kernel's time only depends on the GPU's clock rate.
__global__ void busy(float *state) {
    float x = state[threadIdx.x];
    for (int i = 0; i < 5000; i++) x = 3.9f * __fmaf_rn(-x, x, x);
    state[threadIdx.x] = x;
}

struct Lane {
    int device, graphs, waits = 0, launches = 0;
    bool ranges = false;
    cudaStream_t stream = nullptr;
    cudaGraphExec_t exec = nullptr;
    unsigned long long *count = nullptr;
    float *state = nullptr;

    Lane(int device, int graphs, int kernels, bool decode) : device(device), graphs(graphs) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaMalloc(&count, sizeof *count));
        CHECK(cudaMemset(count, 0, sizeof *count));
        CHECK(cudaMalloc(&state, 128 * sizeof *state));
        CHECK(cudaMemset(state, 0x3e, 128 * sizeof *state));
        cudaStream_t own;
        CHECK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
        if (decode)
            for (int i = 0; i < 20; i++) busy<<<64, 128, 0, own>>>(state);
        else
            for (int i = 0; i < kernels; i++) tick<<<1, 32, 0, own>>>(count);
        CHECK(cudaStreamEndCapture(own, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
        stream = nullptr; // with per-thread streams, the thread's own default stream
#else
        stream = own;
#endif
        // Waits for the device and not for the stream: some rules count each wait for the stream as a step, and this
        // wait belongs to no step.
        CHECK(cudaDeviceSynchronize());
    }

    // No library exports this function, and calls to it do not pass through the PLT. So the library
    // cannot intercept it.
    [[gnu::noinline]] void step(unsigned i) {
        char name[32];
        if (ranges) {
            snprintf(name, sizeof name, "step %u", i);
            nvtxRangePushA(name);
        }
        for (int g = 0; g < graphs; g++) CHECK(cudaGraphLaunch(exec, stream));
        tick<<<i + 1, 32, 0, stream>>>(count);
        CHECK(cudaGetLastError());
        truth(i);
        for (int w = 0; w < waits; w++) {
            CHECK(cudaStreamSynchronize(stream));
            for (int k = launches * w / waits; k < launches * (w + 1) / waits; k++) tick<<<1, 32, 0, stream>>>(count);
        }
        CHECK(cudaStreamSynchronize(stream));
        if (ranges) nvtxRangePop();
    }

    // Returns the duration of one graph on the GPU, in µs.
    double graph_us() {
        const int times = 50;
        cudaEvent_t begin, end;
        float ms;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        for (int i = 0; i <= times; i++) {
            // the first launch is a warm-up, so the time is measured from the second
            if (i == 1) CHECK(cudaEventRecord(begin, stream));
            CHECK(cudaGraphLaunch(exec, stream));
        }
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        return ms * 1000 / times;
    }

    unsigned long long ticks() {
        unsigned long long value;
        CHECK(cudaSetDevice(device));
        CHECK(cudaMemcpy(&value, count, sizeof value, cudaMemcpyDeviceToHost));
        return value;
    }
};

static double now(clockid_t clock = CLOCK_MONOTONIC) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void serve_blocks(Lane &lane) {
    double seconds;
    printf("graph %.1f us\nready\n", lane.graph_us());
    fflush(stdout);
    while (scanf("%lf", &seconds) == 1) {
        long steps = 0;
        // The first steps after the sleep are not measured, because they warm up the caches and raise the GPU's
        // clocks.
        for (int i = 0; i < 20; i++) lane.step(0);
        double used = now(CLOCK_PROCESS_CPUTIME_ID), began = now(), elapsed;
        while ((elapsed = now() - began) < seconds)
            for (int i = 0; i < 20; i++, steps++) lane.step(0);
        printf("%ld %.9f %.9f\n", steps, elapsed, now(CLOCK_PROCESS_CPUTIME_ID) - used);
        fflush(stdout);
    }
}

// Makes the steps in one thread per device, strictly in turn. So the scheduler has no influence on which thread makes
// a step.
static void take_turns(std::vector<Lane> &lanes, int steps) {
    std::mutex mutex;
    std::condition_variable changed;
    int turn = 0, lane_count = (int)lanes.size();
    std::vector<std::thread> threads;
    for (int id = 0; id < lane_count; id++)
        threads.emplace_back([&, id] {
            CHECK(cudaSetDevice(lanes[id].device));
            for (int i = id; i < steps; i += lane_count) {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [&] { return turn == i; });
                lanes[id].step(i);
                turn++;
                changed.notify_all();
            }
        });
    for (auto &thread : threads) thread.join();
}

static void end_here(int) { _exit(STATUS); }

int main(int argc, char **argv) {
    int steps = 200, graphs = 1, kernels = 3, device = 0, devices = 1, pause_after = -1, waits = 0, launches = 0;
    const char *times = nullptr;
    bool blocks = false, decode = false, ranges = false;
    const char *end = "return";
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(option, "--blocks")) blocks = true;
        else if (!strcmp(option, "--decode")) decode = true;
        else if (!strcmp(option, "--ranges")) ranges = true;
        else if (!strcmp(option, "--steps")) steps = atoi(value), i++;
        else if (!strcmp(option, "--graphs")) graphs = atoi(value), i++;
        else if (!strcmp(option, "--kernels")) kernels = atoi(value), i++;
        else if (!strcmp(option, "--device")) device = atoi(value), i++;
        else if (!strcmp(option, "--devices")) devices = atoi(value), i++;
        else if (!strcmp(option, "--pause-after")) pause_after = atoi(value), i++;
        else if (!strcmp(option, "--waits")) waits = atoi(value), i++;
        else if (!strcmp(option, "--launches")) launches = atoi(value), i++;
        else if (!strcmp(option, "--times")) times = value, i++;
        else if (!strcmp(option, "--end")) end = value, i++;
        else return fprintf(stderr, "loop: unknown option %s\n", option), 2;
    }
    std::vector<Lane> lanes;
    for (int id = 0; id < devices; id++) lanes.emplace_back(device + id, graphs, kernels, decode);
    for (auto &lane : lanes) lane.ranges = ranges, lane.waits = waits, lane.launches = launches;
    CHECK(cudaSetDevice(device));
    if (blocks) {
        serve_blocks(lanes[0]);
        return 0;
    }
    std::vector<long long> began;
    began.reserve(steps);
    if (devices > 1) take_turns(lanes, steps);
    else
        for (int i = 0; i < steps; i++) {
            // Without --times, the grid of step i has i + 1 blocks, so later steps take longer. With --times, all steps
            // have the same grid, so that their times can be compared.
            began.push_back((long long)(now() * 1e9));
            lanes[0].step(times ? 0 : i);
            if (i == pause_after) usleep(500000);
        }
    if (FILE *file = times ? fopen(times, "wb") : nullptr) {
        fwrite(began.data(), sizeof began[0], began.size(), file);
        fclose(file);
    }
    unsigned long long ticks = 0;
    for (auto &lane : lanes) ticks += lane.ticks();
    printf("loop: %d steps, %llu ticks\n", steps, ticks);
    fflush(stdout);
    if (!strcmp(end, "exit")) exit(STATUS);
    if (!strcmp(end, "_exit")) _exit(STATUS);
    if (!strcmp(end, "quick_exit")) quick_exit(STATUS);
    if (!strcmp(end, "term")) {
        signal(SIGTERM, end_here);
        raise(SIGTERM);
    }
    return STATUS;
}
