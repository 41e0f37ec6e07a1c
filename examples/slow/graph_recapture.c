/* An example that suffers from a graph that is captured again in every 50th step, for example because it depends on
 * a growing length.
 *
 *   cc -O2 graph_recapture.c -o graph_recapture -ldl
 *   tllmprof run --window 10-160 --step cuStreamSynchronize -- ./graph_recapture
 */
#include "gpu.h"

enum { STEPS = 170, EVERY = 50, KERNELS = 4, KERNEL_NS = 250000, CAPTURED = 2000 };

int main(void)
{
    void *graph = NULL, *other = NULL;
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        if (step % EVERY == 0) {
            gpu_capture(&graph, KERNELS, KERNEL_NS);
            /* Another graph, such as one for another length. It is never launched. */
            gpu_capture(&other, CAPTURED, 0);
        }
        gpu_launch_graph(graph);
        gpu_wait();
    }
}
