// load busy|idle SECONDS: keeps the GPU busy or idle for this number of seconds.
//
// Waits for the stream about ten times per second. The rule with which this program is profiled
// ends an iteration at each such wait. With `busy`, every SM computes from the first iteration to
// the last. With `idle`, there is a CUDA context, but no kernel runs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            fprintf(stderr, "load: %s: %s\n", #call, cudaGetErrorString(error));                 \
            _exit(1);                                                                            \
        }                                                                                        \
    } while (0)

__global__ void compute(float *state, int rounds) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    float x = state[thread];
    for (int i = 0; i < rounds; i++) x = 3.9f * __fmaf_rn(-x, x, x);
    state[thread] = x;
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const int threads = 256, rounds = 100000;
    if (argc != 3) return fprintf(stderr, "usage: load busy|idle SECONDS\n"), 2;
    bool busy = !strcmp(argv[1], "busy");
    int sms;
    float *state;
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    int blocks = 4 * sms;
    CHECK(cudaMalloc(&state, sizeof *state * blocks * threads));
    CHECK(cudaMemset(state, 0x3e, sizeof *state * blocks * threads));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    int iterations = 0;
    for (double end = now() + atof(argv[2]); now() < end; iterations++) {
        if (busy) {
            for (double until = now() + 0.1; now() < until;) {
                // These launches keep the GPU busy for some milliseconds.
                for (int i = 0; i < 4; i++) compute<<<blocks, threads, 0, stream>>>(state, rounds);
                CHECK(cudaGetLastError());
                // Waits for an event and not for the stream, because each wait for the stream ends an iteration.
                CHECK(cudaEventRecord(event, stream));
                CHECK(cudaEventSynchronize(event));
            }
        } else {
            usleep(100000);
        }
        CHECK(cudaStreamSynchronize(stream));
    }
    printf("load: %d iterations\n", iterations);
    return 0;
}
