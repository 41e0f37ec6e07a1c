/* An example that suffers from slow host code: before each launch, it samples the next tokens one by one on one
 * processor.
 *
 *   cc -O2 host_code.c -o host_code -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./host_code
 */
#include "gpu.h"

enum { STEPS = 30, KERNEL_NS = 4000000, SAMPLES = 10000000 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        for (volatile int sample = 0; sample < SAMPLES; sample++)
            ;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
