#include "hostile.h"

extern struct loop shared_loop;

static void *make_eight(void *argument)
{
    gpu_use();
    make_steps(&shared_loop, 8);
    return argument;
}

__attribute__((constructor)) static void wait_for_steps(void)
{
    pthread_join(start_thread(make_eight, NULL), NULL);
}
