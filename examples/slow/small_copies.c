/* An example that suffers from small copies: the data of each request in the batch is copied to the GPU separately.
 * One copy for all requests would be enough.
 *
 *   cc -O2 small_copies.c -o small_copies -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./small_copies
 */
#include "gpu.h"

enum { STEPS = 30, COPIES = 1000, BYTES = 256, KERNEL_NS = 1000000 };

int main(void)
{
    static char inputs[COPIES][BYTES];
    gpu_start(0);
    unsigned long long buffer = gpu_allocate(sizeof inputs);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < COPIES; i++)
            gpu_copy_in_async(buffer + (unsigned long long)i * BYTES, inputs[i], BYTES);
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
