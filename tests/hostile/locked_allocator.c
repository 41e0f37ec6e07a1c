/* An allocator that takes a lock, and a thread that holds the lock while it waits for the loader. With heaptrack,
 * this can happen: its allocator unwinds the stack, and so does an exception in another thread. */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t number, size_t size);
extern void *__libc_realloc(void *old, size_t size);

static pthread_mutex_t unwinder = PTHREAD_MUTEX_INITIALIZER;

static void lock(void)
{
    pthread_mutex_lock(&unwinder);
}

/* Sleeps until the thread that runs `throw` has most likely taken the lock. */
static void wait_a_moment(void)
{
    usleep(200);
}

static void unlock(void)
{
    pthread_mutex_unlock(&unwinder);
}

void *malloc(size_t size)
{
    wait_a_moment();
    lock();
    unlock();
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    wait_a_moment();
    lock();
    unlock();
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size)
{
    wait_a_moment();
    lock();
    unlock();
    return __libc_realloc(old, size);
}

static int look(struct dl_phdr_info *info, size_t size, void *nothing)
{
    (void)info;
    (void)size;
    (void)nothing;
    return 0;
}

static void *throw(void *nothing)
{
    for (;;) {
        lock();
        dl_iterate_phdr(look, NULL);
        unlock();
        sched_yield();
    }
    return nothing;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;
    pthread_atfork(lock, unlock, unlock);
    if (pthread_create(&thread, NULL, throw, NULL) == 0)
        pthread_detach(thread);
}
