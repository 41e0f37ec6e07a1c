/* An example that suffers from small kernels: each ends before the host has launched the next one. A CUDA graph of
 * them, or one kernel in their place, would help.
 *
 *   cc -O2 small_kernels.c -o small_kernels -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./small_kernels
 */
#include "gpu.h"

enum { STEPS = 30, KERNELS = 2000 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < KERNELS; i++)
            gpu_launch(0);
        gpu_wait();
    }
}
