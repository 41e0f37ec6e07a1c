/* An example that suffers from a lock: a thread that writes statistics holds it most of the time, and each step
 * needs it.
 *
 *   cc -O2 lock.c -o lock -ldl -lpthread
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./lock
 */
#include "gpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum { STEPS = 30, KERNEL_NS = 5000000, HOLDS_NS = 8000000, PAUSES_NS = 1000000 };

static pthread_mutex_t statistics = PTHREAD_MUTEX_INITIALIZER;
static volatile bool is_over;

static void pause_for(long ns)
{
    struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

static void *write_statistics(void *nothing)
{
    while (!is_over) {
        pthread_mutex_lock(&statistics);
        pause_for(HOLDS_NS); /* stands for a write to a remote disk */
        pthread_mutex_unlock(&statistics);
        pause_for(PAUSES_NS);
    }
    return nothing;
}

__attribute__((noinline)) static void submit(void)
{
    pthread_mutex_lock(&statistics);
    gpu_launch(KERNEL_NS);
    pthread_mutex_unlock(&statistics);
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    pthread_t writer;
    gpu_start(0);
    if (pthread_create(&writer, NULL, write_statistics, NULL) != 0)
        return 1;
    for (int step = 0; step < steps; step++) {
        submit();
        gpu_wait();
    }
    is_over = true;
    pthread_join(writer, NULL);
}
