/* foreign NAME [ARGUMENT]...: makes six steps, each in a range named NAME. Other arguments are ignored. */
#define _GNU_SOURCE
#include "../nvtx/loop.h"

#include <pthread.h>

static void *run(void *name)
{
    pthread_setname_np(pthread_self(), "\x1b[31m\nfake: x");
    for (int n = 0; n < 6; n++) {
        nvtxRangePushA(name);
        work();
        nvtxRangePop();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 2)
        return 2;
    use_cuda();
    if (pthread_create(&thread, NULL, run, argv[1]) != 0)
        return 3;
    pthread_join(thread, NULL);
    return 7;
}
