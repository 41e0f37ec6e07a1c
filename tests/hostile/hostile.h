/* Shared parts of the hostile programs: a loop, and a time limit for programs that hang. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include "program.h"

#include "loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* Time limit of a program, in seconds. It is shorter than the time limit of the test that runs the program. */
enum { TIMEOUT_SECONDS = 200 };

static inline void hostile_begin(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(TIMEOUT_SECONDS);
}

static inline void open_default(struct loop *loop)
{
    struct loop_options options = loop_defaults();
    loop_open(loop, &options);
}

static inline void make_steps(struct loop *loop, int count)
{
    for (int n = 0; n < count; n++)
        loop_step(loop, n);
}

static inline void print_result(struct loop *loop)
{
    printf("checksum %016llx\n", (unsigned long long)loop_close(loop));
}

static inline pthread_t start_thread(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, argument) != 0)
        exit(3);
    return thread;
}

#endif
