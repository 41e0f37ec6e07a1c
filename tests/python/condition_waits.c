/* Preloaded behind the shim: counts the calls of pthread_cond_wait of the process, which are those
 * of threads that were forced to give the GIL away, and prints it at the end. And keeps what each thread
 * read last from the monotonic clock: the shim reads it just before it passes a range to a tool, and
 * log_tool.c writes that reading down instead of one of its own, which would be later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static unsigned count;
static __thread uint64_t last __attribute__((tls_model("initial-exec")));

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_MONOTONIC)
        last = (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
    return result;
}

uint64_t last_reading(void) { return last; }

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *);
    if (next == NULL)
        next = (int (*)(pthread_cond_t *, pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_cond_wait");
    __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    return next(condition, mutex);
}

__attribute__((destructor)) static void print_count(void) { fprintf(stderr, "condition waits: %u\n", count); }
