/* A loop that replays a CUDA graph, like the decode steps of engines. Nothing is wrong with it.
 *
 *   cc -O2 healthy_graph.c -o healthy_graph -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./healthy_graph
 */
#include "gpu.h"

enum { STEPS = 30, KERNELS = 5, KERNEL_NS = 4000000 };

int main(void)
{
    void *graph = NULL;
    gpu_start(0);
    gpu_capture(&graph, KERNELS, KERNEL_NS);
    for (int step = 0; step < STEPS; step++) {
        gpu_launch_graph(graph);
        gpu_wait();
    }
}
