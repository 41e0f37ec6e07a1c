/* An example that suffers from host waits: six times in each step, the host waits for a result of the GPU (a
 * .item() in PyTorch) and computes with it before it launches the next kernel.
 *
 *   cc -O2 host_waits.c -o host_waits -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize/6 -- ./host_waits
 */
#include "gpu.h"

enum { STEPS = 30, WAITS = 6, KERNEL_NS = 1000000, THINKS_NS = 2000000 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < WAITS; i++) {
            gpu_launch(KERNEL_NS);
            gpu_wait();
            host_works(THINKS_NS);
        }
}
