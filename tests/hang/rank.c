/* rank NUMBER RANKS FAULT: a rank that makes steps with collectives. In step 20, the fault happens in rank 2. The program
 * ends by itself after 400 s, or 400 s after HANG_MINUTES. */
#include "program.h"

#include "loop.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

typedef struct {
    char internal[128];
} ncclUniqueId;

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream);
void hang_add_work(int seconds);

enum { FAULT_STEP = 20, FAULTY = 2, BFLOAT16 = 9, COUNT = 1 << 20 };

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER;
static volatile int has_one;

static void __attribute__((noinline)) hold_up(void)
{
    for (;;)
        pause();
}

static void *keep_lock(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&one);
    has_one = 1;
    hold_up();
    return NULL;
}

static void *lock_one_then_other(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&one);
    has_one = 1;
    while (has_one != 2)
        usleep(1000);
    pthread_mutex_lock(&other);
    return NULL;
}

static void __attribute__((noinline)) take_lock(void *(*holder)(void *))
{
    pthread_t thread;
    pthread_mutex_lock(&other);
    pthread_create(&thread, NULL, holder, NULL);
    while (!has_one)
        usleep(1000);
    has_one = 2;
    pthread_mutex_lock(&one);
    pthread_mutex_unlock(&one);
}

static void __attribute__((noinline)) compile(void)
{
    for (volatile unsigned long n = 0;; n++)
        ;
}

static void __attribute__((noinline)) wait_for_work(void)
{
    for (;;)
        poll(NULL, 0, -1);
}

/* A host function. It has a frame pointer, as the code of many distributions does, so only the register rbp leads to
 * its caller. `tllmprof hang` does not know this register. */
static void __attribute__((noinline, optimize("no-omit-frame-pointer"))) wait_for_copy(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}

/* Enqueues the host function. The program finds the driver's function by itself, as ctypes does. */
static void launch_host_function(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*launch)(void *, void (*)(void *), void *);
    *(void **)&launch = dlsym(driver, "cuLaunchHostFunc");
    launch(NULL, wait_for_copy, NULL);
}

static void fail(const char *fault)
{
    if (strcmp(fault, "sleeps") == 0)
        hold_up();
    else if (strcmp(fault, "killed") == 0)
        raise(SIGKILL);
    else if (strcmp(fault, "ends") == 0)
        exit(1);
    else if (strcmp(fault, "stopped") == 0)
        raise(SIGSTOP);
    else if (strcmp(fault, "lock") == 0)
        take_lock(keep_lock);
    else if (strcmp(fault, "deadlock") == 0)
        take_lock(lock_one_then_other);
    else if (strcmp(fault, "host") == 0)
        launch_host_function();
    else if (strcmp(fault, "works") == 0)
        compile();
}

/* Receives from the rank with the previous number, and sends to the rank with the next one. The faulty rank
 * receives but does not send. */
static void pass_on(int rank, int ranks, int is_faulty, void *comm, void *stream)
{
    if (rank > 0)
        ncclRecv(NULL, COUNT, BFLOAT16, rank - 1, comm, stream);
    if (is_faulty)
        hold_up();
    if (rank + 1 < ranks)
        ncclSend(NULL, COUNT, BFLOAT16, rank + 1, comm, stream);
}

static void compile_for(int seconds)
{
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec < end.tv_sec + seconds);
}

/* Makes step n of a healthy server. Some steps also wait for requests, capture a graph, compile on one rank, or
 * make a prefill. Each of these takes longer than the quiet time after which ranks may be called stuck. */
static void serve(int n, int rank, int ranks, void *comm, struct loop *loop)
{
    enum { USUAL = 16, LONG = 4 };
    switch (n % (4 * USUAL)) {
    case USUAL:
        poll(NULL, 0, 1000 * LONG);
        break;
    case 2 * USUAL:
        gpu_begin_capture(loop->stream, 0);
        for (int layer = 0; layer < 4; layer++) {
            usleep(1000 * (unsigned)(rank + 1));
            ncclAllReduce(NULL, NULL, COUNT, BFLOAT16, 0, comm, loop->stream);
        }
        gpu_graph graph = NULL;
        gpu_end_capture(loop->stream, &graph);
        gpu_graph_destroy(graph);
        break;
    case 3 * USUAL:
        if (rank == n / (4 * USUAL) % ranks)
            compile_for(LONG);
        break;
    case 4 * USUAL - 1:
        hang_add_work(LONG);
        break;
    default:
        usleep(20000);
    }
    ncclAllReduce(NULL, NULL, COUNT, BFLOAT16, 0, comm, loop->stream);
    ncclBroadcast(NULL, NULL, 1, BFLOAT16, 0, comm, loop->stream);
    loop_step(loop, n);
}

int main(int argc, char **argv)
{
    program_begin();
    if (argc != 4)
        return 2;
    const char *minutes = getenv("HANG_MINUTES");
    if (minutes != NULL)
        alarm(60 * (unsigned)atoi(minutes) + 400);
    int rank = atoi(argv[1]), ranks = atoi(argv[2]);
    const char *fault = argv[3];
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    /* The ranks of each run share a file, so its inode number makes the identifier of the communicator unique. */
    ncclUniqueId id = {.internal = {0}};
    struct stat file;
    if (stat(getenv("HANG_SHARED"), &file) != 0)
        return 2;
    memcpy(id.internal + 8, &file.st_ino, sizeof file.st_ino);
    void *comm;
    ncclCommInitRank(&comm, ranks, id, rank);
    for (int n = 0; n < 100000; n++) {
        if (strcmp(fault, "none") == 0) {
            serve(n, rank, ranks, comm, &loop);
            continue;
        }
        int is_faulty = n == FAULT_STEP && rank == FAULTY;
        if (is_faulty)
            fail(fault);
        if (n == FAULT_STEP && strcmp(fault, "idle") == 0)
            wait_for_work();
        if (strcmp(fault, "keeps") == 0) {
            pass_on(rank, ranks, is_faulty, comm, loop.stream);
            loop_step(&loop, n);
            continue;
        }
        if (strcmp(fault, "slow") == 0)
            usleep(400000);
        int is_swapped = is_faulty && strcmp(fault, "order") == 0;
        size_t count = is_faulty && strcmp(fault, "size") == 0 ? COUNT / 2 : COUNT;
        if (is_swapped)
            ncclBroadcast(NULL, NULL, 1, BFLOAT16, 0, comm, loop.stream);
        if (!is_faulty || strcmp(fault, "skips") != 0)
            ncclAllReduce(NULL, NULL, count, BFLOAT16, 0, comm, loop.stream);
        if (!is_swapped)
            ncclBroadcast(NULL, NULL, 1, BFLOAT16, 0, comm, loop.stream);
        loop_step(&loop, n);
    }
    return 0;
}
