/* A library that is preloaded after the shim and counts the process's calls of pthread_cond_wait. In CPython,
 * these calls come from threads that were forced to give up the GIL. The library prints the count at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static unsigned count;

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *);
    if (next == NULL)
        next = (int (*)(pthread_cond_t *, pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_cond_wait");
    __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    return next(condition, mutex);
}

__attribute__((destructor)) static void print_count(void) { fprintf(stderr, "condition waits: %u\n", count); }
