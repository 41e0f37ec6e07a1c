/* A loop that leaves the GPU no time to rest: a few large kernels a step, and one wait.
 *
 *   cc -O2 healthy.c -o healthy -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./healthy
 */
#include "gpu.h"

enum { STEPS = 30, KERNELS = 5, KERNEL_NS = 4000000 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < KERNELS; i++)
            gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
