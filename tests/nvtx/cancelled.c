/* A thread is cancelled in a tool's push, for which TOOL_WAITS is set. */
#include "loop.h"

#include <pthread.h>
#include <unistd.h>

static void *run(void *unused)
{
    (void)unused;
    nvtxRangePushA("step");
    return NULL;
}

int main(void)
{
    pthread_t thread;
    void *result = NULL;
    use_cuda();
    pthread_create(&thread, NULL, run, NULL);
    usleep(100000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    puts(result == PTHREAD_CANCELED ? "cancelled" : "ended");
    work();
    return 0;
}
