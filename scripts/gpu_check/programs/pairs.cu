// A loop with steps of about 2 ms on an H100: 1 ms of host work, then eight layers of four kernels, then a wait for the
// stream.
//
//   pairs STEPS CHANGE
//
// CHANGE makes each step about 2 % longer: host (the host's work takes longer), kernel (the attention kernels have more
// work), launches (18 more, nearly empty kernels), layer (the kernels of layer 3 have more work), or none. Each layer
// is an NVTX range `layer N`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nvtx3/nvToolsExt.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            fprintf(stderr, "pairs: %s: %s\n", #call, cudaGetErrorString(error));                \
            return 1;                                                                            \
        }                                                                                        \
    } while (0)

static const int LAYERS = 8, CHANGED_LAYER = 3, MORE_LAUNCHES = 18;
static const long HOST_NS = 1000000, MORE_HOST_NS = 40000;
// Rounds of a kernel's loop; 7500 rounds take 30 us. The change `kernel` adds MORE_OF_KERNEL to the attention
// kernels, and `layer` adds MORE_OF_LAYER to the kernels of one layer. Either makes a step 40 us longer.
static const int ROUNDS = 7500, MORE_OF_KERNEL = 1240, MORE_OF_LAYER = 2475;

// Arithmetic in which each operation needs the result of the operation before it. The arithmetic is the same in every
// step, so its time only depends on the GPU's clock rate.
__device__ void work(float *state, int rounds) {
    float x = state[threadIdx.x];
    for (int i = 0; i < rounds; i++) x = 3.9f * __fmaf_rn(-x, x, x);
    state[threadIdx.x] = x;
}

__global__ void norm(float *state, int rounds) { work(state, rounds); }
__global__ void attention(float *state, int rounds) { work(state, rounds); }
__global__ void gemm(float *state, int rounds) { work(state, rounds); }
__global__ void activation(float *state, int rounds) { work(state, rounds); }
__global__ void sample(float *state, int rounds) { work(state, rounds); }

static long now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

__attribute__((noinline)) void prepare(long ns) {
    for (long end = now() + ns; now() < end;) {
    }
}

int main(int count, char **words) {
    if (count != 3) return fprintf(stderr, "pairs: wanted: STEPS CHANGE\n"), 2;
    int steps = atoi(words[1]);
    auto is = [&](const char *change) { return strcmp(words[2], change) == 0; };
    if (!is("none") && !is("host") && !is("kernel") && !is("launches") && !is("layer"))
        return fprintf(stderr, "pairs: %s: wanted: none, host, kernel, launches or layer\n", words[2]), 2;
    long host = HOST_NS + (is("host") ? MORE_HOST_NS : 0);
    int of_attention = ROUNDS + (is("kernel") ? MORE_OF_KERNEL : 0), more_launches = is("launches") ? MORE_LAUNCHES : 0;
    float *state;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&state, 32 * sizeof(float)));
    CHECK(cudaMemset(state, 0, 32 * sizeof(float)));
    char name[32];
    for (int step = 0; step < steps; step++) {
        prepare(host);
        for (int layer = 0; layer < LAYERS; layer++) {
            int more = is("layer") && layer == CHANGED_LAYER ? MORE_OF_LAYER : 0;
            snprintf(name, sizeof name, "layer %d", layer);
            nvtxRangePushA(name);
            norm<<<1, 32, 0, stream>>>(state, ROUNDS + more);
            attention<<<1, 32, 0, stream>>>(state, of_attention + more);
            gemm<<<1, 32, 0, stream>>>(state, ROUNDS + more);
            activation<<<1, 32, 0, stream>>>(state, ROUNDS + more);
            nvtxRangePop();
        }
        for (int i = 0; i < 1 + more_launches; i++) sample<<<1, 32, 0, stream>>>(state, 1);
        CHECK(cudaStreamSynchronize(stream));
    }
    return 0;
}
