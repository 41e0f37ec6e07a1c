/* An example that suffers from a lack of GPU work: each step sleeps for 6 ms and then waits for a stream on which
 * nothing runs.
 *
 *   cc -O2 no_gpu_work.c -o no_gpu_work -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./no_gpu_work
 */
#include "gpu.h"

enum { STEPS = 30, SLEEP_NS = 6000000 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        struct timespec time = {0, SLEEP_NS};
        nanosleep(&time, NULL);
        gpu_wait();
    }
}
