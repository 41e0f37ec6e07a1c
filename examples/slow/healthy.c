/* A loop that keeps the GPU busy all the time: a few large kernels per step, and one wait.
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
