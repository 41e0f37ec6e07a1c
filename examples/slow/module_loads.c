/* An example that suffers from code that is loaded in every 50th step, as when a kernel is compiled for each new shape.
 *
 *   cc -O2 module_loads.c -o module_loads -ldl
 *   tllmprof run --window 40-190 --step cuStreamSynchronize -- ./module_loads
 */
#include "gpu.h"

enum { STEPS = 200, EVERY = 50, MODULES = 4, KERNELS = 4, KERNEL_NS = 250000 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        if (step % EVERY == 10)
            for (int module = 0; module < MODULES; module++)
                gpu_load();
        for (int kernel = 0; kernel < KERNELS; kernel++)
            gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
