/* Eight threads open ranges at once: in total THREADS * RANGES ranges named "step", and as many with other
 * names. The main thread uses CUDA. */
#include "loop.h"

#include <pthread.h>

enum { THREADS = 8, RANGES = 20000 };

static void *run(void *unused)
{
    (void)unused;
    for (int n = 0; n < RANGES; n++) {
        char name[32];
        snprintf(name, sizeof name, "step %d", n);
        nvtxRangePushA(name);
        nvtxRangePushA("inner");
        nvtxRangePop();
        nvtxRangePop();
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    use_cuda();
    work();
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    work();
    return 0;
}
