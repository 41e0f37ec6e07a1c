/* host THREADS [STEPS]: launches like a serving loop, while other threads do work that an attach must not disturb.
 * Each thread checks its own results. Ends after STEPS steps, or, if STEPS is 0, once there is a file `end` in the
 * current folder. Prints `ready` after the first step, and at the end `bad N, checksum X`, with the number N of
 * wrong results.
 *
 * Environment variables and files:
 *   AT_ONCE  ends by _exit
 *   LATER    prints `ready` before the first CUDA call, which it makes once there is a file `begin`
 *   KIND=K   the only thread does the work of thread number K, and uses no CUDA
 *   look_up  while there is this file, each step looks up a function of the driver and calls it
 *
 * Work of the threads, in the order of their numbers: compute in all types of registers; allocate; open and close a
 * library; wait in several types of system calls, which must neither end early nor fail; fork and wait for the
 * child; wait for a condition variable and for locks. */
#include "program.h"

#include "loop.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

enum { KINDS = 6, MAX_THREADS = 64 };

static atomic_int over, bad;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "wrong: %s\n", what);
        atomic_fetch_add(&bad, 1);
    }
}

typedef double wide __attribute__((vector_size(32)));

/* Computes with integers, x87 and vector registers. Every call returns the same result, unless an attach has
 * changed a register. */
__attribute__((noinline)) static double figures(void)
{
    unsigned long state = 88172645463325252UL;
    long double extended = 1;
    double scalar = 1;
    for (int i = 0; i < 20000; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        extended = extended * 1.0000001L + (long double)(state & 7);
        scalar = scalar * 0.9999999 + (double)(state & 15);
    }
    return (double)state + (double)extended + scalar;
}

#ifdef __x86_64__
__attribute__((noinline, target("avx2"))) static double vectors(void)
{
    wide sum = {1, 2, 3, 4}, factor = {1.0000001, 0.9999999, 1.0000002, 0.9999998};
    for (int i = 0; i < 20000; i++)
        sum = sum * factor + (wide){1, 2, 3, 4};
    return sum[0] + sum[1] + sum[2] + sum[3];
}
#endif

static void compute(void)
{
    static _Thread_local double first, first_vectors;
    double result = figures();
    expect(first == 0 || first == result, "figures");
    first = result;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        result = vectors();
        expect(first_vectors == 0 || first_vectors == result, "vectors");
        first_vectors = result;
    }
#endif
    (void)first_vectors;
}

static void allocate(void)
{
    static _Thread_local unsigned seed = 1;
    char *blocks[32];
    for (int i = 0; i < 32; i++) {
        seed = seed * 1103515245 + 12345;
        size_t size = 1 + seed % (i % 8 == 0 ? 300000 : 500);
        blocks[i] = malloc(size);
        memset(blocks[i], i, size);
    }
    for (int i = 0; i < 32; i++) {
        expect(blocks[i][0] == i, "allocated");
        free(blocks[i]);
    }
}

static void open_library(void)
{
    void *library = dlopen("libutil.so.1", RTLD_NOW);
    void *other = dlopen("libnsl.so.1", RTLD_NOW);
    expect(dlsym(library != NULL ? library : RTLD_DEFAULT, "malloc") != NULL, "dlsym");
    if (library != NULL)
        dlclose(library);
    if (other != NULL)
        dlclose(other);
}

static void wait_in_calls(void)
{
    struct timespec rest = {0, 3000000};
    errno = EDOM;
    double since = now();
    expect(nanosleep(&rest, NULL) == 0, "nanosleep");
    expect(now() - since >= 0.003, "nanosleep was short");
    since = now();
    expect(poll(NULL, 0, 3) == 0, "poll");
    expect(now() - since >= 0.003, "poll was short");
    int set = epoll_create1(0);
    struct epoll_event event;
    expect(epoll_wait(set, &event, 1, 2) == 0, "epoll_wait");
    close(set);
    struct timeval time = {0, 2000};
    expect(select(0, NULL, NULL, NULL, &time) == 0, "select");
    expect(errno == EDOM, "errno");
}

static void fork_and_wait(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int status = 0;
    expect(child > 0 && waitpid(child, &status, 0) == child, "waitpid");
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child's status");
    usleep(500);
}

static void wait_for_others(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    static int owner;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000)
        until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&lock);
    expect(owner++ == 0, "the lock");
    for (volatile int i = 0; i < 1000; i++)
        ;
    expect(--owner == 0, "the lock");
    int result = pthread_cond_timedwait(&condition, &lock, &until);
    expect(result == ETIMEDOUT || result == 0, "the condition");
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&lock);
}

static void (*const kinds[KINDS])(void) = {compute,       allocate,      open_library,
                                           wait_in_calls, fork_and_wait, wait_for_others};

static void *work(void *number)
{
    while (!atomic_load(&over))
        kinds[(long)number % KINDS]();
    return NULL;
}

/* Calls a function of the driver after looking up its address anew. */
static void look_up_and_call(void)
{
    int (*call)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "cuCtxSynchronize");
    if (call == NULL) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        call = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
        dlclose(driver);
    }
    expect(call != NULL && call() == 0, "cuCtxSynchronize");
    expect(dlsym(RTLD_DEFAULT, "cuNoSuchFunction") == NULL && dlerror() != NULL, "dlerror");
}

int main(int argc, char **argv)
{
    alarm(300);
    if (getenv("KIND") != NULL) {
        int kind = atoi(getenv("KIND"));
        printf("ready\n");
        fflush(stdout);
        while (access("end", F_OK) != 0)
            kinds[kind]();
        printf("bad %d, checksum 0\n", atomic_load(&bad));
        return 0;
    }
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    long steps = argc > 2 ? atol(argv[2]) : 0;
    pthread_t all[MAX_THREADS];
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, work, (void *)i);
    if (getenv("LATER") != NULL) {
        printf("ready\n");
        fflush(stdout);
        while (access("begin", F_OK) != 0)
            usleep(300);
    }
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    for (long step = 0; steps > 0 ? step < steps : access("end", F_OK) != 0; step++) {
        loop_step(&loop, (int)step);
        if (access("look_up", F_OK) == 0)
            look_up_and_call();
        usleep(300);
        if (step == 0) {
            printf("ready\n");
            fflush(stdout);
        }
    }
    atomic_store(&over, 1);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    unsigned long long checksum = loop_close(&loop);
    printf("bad %d, checksum %016llx\n", atomic_load(&bad), steps > 0 ? checksum : 0);
    fflush(stdout);
    if (getenv("AT_ONCE") != NULL)
        _exit(0);
    return 0;
}
