/* An example that suffers from a thread that makes batches too slowly: each step waits for the next batch.
 *
 *   cc -O2 batch_wait.c -o batch_wait -ldl -lpthread
 *   tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- ./batch_wait 80    # 80 steps
 */
#include "gpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum { STEPS = 30, KERNEL_NS = 5000000, MAKES_NS = 10000000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_there = PTHREAD_COND_INITIALIZER;
static int batches;

static void *make_batches(void *count)
{
    for (int batch = 0; batch < *(int *)count; batch++) {
        struct timespec time = {0, MAKES_NS};
        nanosleep(&time, NULL); /* stands for a request to another process, which takes this long */
        pthread_mutex_lock(&lock);
        batches++;
        pthread_cond_signal(&is_there);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

__attribute__((noinline)) static void take_batch(void)
{
    pthread_mutex_lock(&lock);
    while (batches == 0)
        pthread_cond_wait(&is_there, &lock);
    batches--;
    pthread_mutex_unlock(&lock);
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    pthread_t maker;
    gpu_start(0);
    if (pthread_create(&maker, NULL, make_batches, &steps) != 0)
        return 1;
    for (int step = 0; step < steps; step++) {
        take_batch();
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
    pthread_join(maker, NULL);
}
