/* An example that suffers from allocations: each step allocates its work space from the driver and frees it, and
 * the driver makes the GPU idle to free memory. A pool would keep the work space.
 *
 *   cc -O2 allocations.c -o allocations -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./allocations
 */
#include "gpu.h"

enum { STEPS = 30, KERNEL_NS = 1000000, WORK_SPACE = 256 << 20 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        unsigned long long work_space = gpu_allocate(WORK_SPACE);
        gpu_launch(KERNEL_NS);
        gpu_free(work_space);
        gpu_wait();
    }
}
