/* An example that suffers from a copy of pageable memory: the call returns only after the driver has read all of
 * the memory. A copy from pinned memory (cuMemHostAlloc) would return at once.
 *
 *   cc -O2 pageable_copy.c -o pageable_copy -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./pageable_copy
 */
#include "gpu.h"

enum { STEPS = 30, KERNEL_NS = 2000000, BYTES = 256 << 20 };

int main(void)
{
    gpu_start(0);
    char *input = malloc(BYTES);
    unsigned long long buffer = gpu_allocate(BYTES);
    for (size_t at = 0; at < BYTES; at++)
        input[at] = (char)at;
    for (int step = 0; step < STEPS; step++) {
        gpu_copy_in(buffer, input, BYTES);
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
