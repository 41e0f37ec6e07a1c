/* An example that suffers from other processes on its processor: its work before each launch has to wait until it
 * gets the processor.
 *
 *   cc -O2 busy_neighbour.c -o busy_neighbour -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./busy_neighbour
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 30, NEIGHBOURS = 3, KERNEL_NS = 16000000, PREPARES_NS = 4000000 };

/* Returns the processor time that this thread has used so far, in ns. */
static long used_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(void)
{
    pid_t neighbours[NEIGHBOURS];
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        return 1;
    for (int i = 0; i < NEIGHBOURS; i++) {
        neighbours[i] = fork();
        if (neighbours[i] == 0)
            for (;;)
                ;
    }
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        /* Computes until the thread has used PREPARES_NS of processor time. The time that it waits for the
         * processor does not count. */
        for (long began = used_ns(); used_ns() - began < PREPARES_NS;)
            ;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
    for (int i = 0; i < NEIGHBOURS; i++) {
        kill(neighbours[i], SIGKILL);
        waitpid(neighbours[i], NULL, 0);
    }
}
