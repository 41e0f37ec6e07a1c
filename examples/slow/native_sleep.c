/* An example that suffers from a native function that sleeps: between the steps, it waits 6 ms for new requests.
 *
 *   cc -O2 native_sleep.c -o native_sleep -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./native_sleep
 */
#include "gpu.h"

#include <time.h>

enum { STEPS = 30, KERNEL_NS = 5000000, LOOKS_NS = 6000000 };

__attribute__((noinline)) static void look_for_requests(void)
{
    struct timespec time = {0, LOOKS_NS};
    nanosleep(&time, NULL);
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    gpu_start(0);
    for (int step = 0; step < steps; step++) {
        look_for_requests();
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
