// recapture STEPS: each step launches five CUDA graphs and reads the result. In every 50th step, the graphs are
// captured and instantiated again. The last line of output lists the time when each step began.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>
#include <unistd.h>
#include <vector>

static const int GRAPHS = 5, KERNELS = 8, AGAIN = 50, SIZE = 1 << 16;

__global__ void add(float *values, float much) {
    values[blockIdx.x * blockDim.x + threadIdx.x] += much;
}

static void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "recapture: %s\n", cudaGetErrorString(error));
    exit(1);
}

int main(int count, char **words) {
    int steps = count > 1 ? atoi(words[1]) : 600;
    cudaStream_t stream;
    float *values, result;
    cudaGraphExec_t graphs[GRAPHS] = {};
    std::vector<long long> began;
    must(cudaStreamCreate(&stream));
    must(cudaMalloc(&values, SIZE * sizeof *values));
    must(cudaMemset(values, 0, SIZE * sizeof *values));
    add<<<SIZE / 256, 256, 0, stream>>>(values, 0); // loads the kernel's module, which is not possible during a capture
    must(cudaStreamSynchronize(stream));
    for (int step = 0; step < steps; step++) {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        began.push_back(now.tv_sec * 1000000000ll + now.tv_nsec);
        for (int number = 0; number < GRAPHS; number++) {
            if (step % AGAIN == 0) {
                cudaGraph_t graph;
                if (graphs[number]) must(cudaGraphExecDestroy(graphs[number]));
                must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                for (int kernel = 0; kernel < KERNELS; kernel++) add<<<SIZE / 256, 256, 0, stream>>>(values, number + 1);
                must(cudaStreamEndCapture(stream, &graph));
                must(cudaGraphInstantiate(&graphs[number], graph, 0));
                must(cudaGraphDestroy(graph));
            }
            must(cudaGraphLaunch(graphs[number], stream));
        }
        must(cudaMemcpyAsync(&result, values, sizeof result, cudaMemcpyDeviceToHost, stream));
        must(cudaStreamSynchronize(stream));
    }
    printf("{\"pid\": %d, \"began\": [", (int)getpid());
    for (size_t n = 0; n < began.size(); n++) printf("%s%lld", n ? ", " : "", began[n]);
    printf("]}\n");
    return 0;
}
