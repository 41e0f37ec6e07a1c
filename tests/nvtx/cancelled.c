/* Cancels a thread while the thread is in the push function of an NVTX tool. The tool writes a byte to the
 * descriptor TOOL_WAITS when the thread has reached that function. */
#include "loop.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
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
    int there[2];
    char number[16], byte;
    use_cuda();
    if (pipe(there) != 0)
        return 2;
    snprintf(number, sizeof number, "%d", there[1]);
    setenv("TOOL_WAITS", number, 1);
    pthread_create(&thread, NULL, run, NULL);
    if (read(there[0], &byte, 1) != 1)
        return 3;
    pthread_cancel(thread);
    pthread_join(thread, &result);
    puts(result == PTHREAD_CANCELED ? "cancelled" : "ended");
    work();
    return 0;
}
