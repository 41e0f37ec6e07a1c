/* Makes steps in many threads at once, and prints how many steps had begun when the profiler was started or stopped:
 *   many THREADS STEPS HOW WORK
 * Each thread makes STEPS steps. HOW says what a step is:
 *   launch    a graph launch, followed by WORK waits
 *   wait      a wait, after WORK graph launches
 *   range     an NVTX range "step" with WORK graph launches in it
 *   started   a start-end range "step" with WORK graph launches in it
 *   function  a call of many_step, which makes WORK graph launches
 * Prints `start N M` or `stop N M` for each start and stop of the profiler: N steps had begun before, and M other threads
 * were at a step that may have begun. */
#define _GNU_SOURCE
#include "../nvtx/loop.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { SWITCHES = 4096 };

static int steps, work_of_step;
static const char *how;
static pthread_barrier_t start;
static atomic_long begun;
/* The number of threads that are at the beginning of a step: the library may have counted the step, and `begun` not yet. */
static atomic_long beginning;
static _Thread_local int is_beginning;
static _Atomic(int) switches;
static struct {
    const char *what;
    long begun, beginning;
} switched[SWITCHES];

/* The stand-in driver calls this function at the end of each of its own functions. */
static void called(const char *function)
{
    const char *what = NULL;
    if (strcmp(function, "cuProfilerStart") == 0)
        what = "start";
    if (strcmp(function, "cuProfilerStop") == 0)
        what = "stop";
    if (what != NULL) {
        int index = atomic_fetch_add(&switches, 1);
        if (index < SWITCHES) {
            switched[index].what = what;
            /* This order: a thread that begins its step between the two reads is counted twice rather than not at all. */
            switched[index].beginning = atomic_load(&beginning) - is_beginning;
            switched[index].begun = atomic_load(&begun);
        }
    }
}

static void begins(void)
{
    is_beginning = 1;
    atomic_fetch_add(&beginning, 1);
}

/* It is inlined, because the library does not follow a function that begins with a call. */
__attribute__((always_inline)) static inline void has_begun(void)
{
    atomic_fetch_add(&begun, 1);
    atomic_fetch_sub(&beginning, 1);
    is_beginning = 0;
}

static void launches(void)
{
    for (int i = 0; i < work_of_step; i++)
        launch();
}

__attribute__((noinline)) void many_step(void)
{
    has_begun();
    launches();
}

static void make_step(void)
{
    if (strcmp(how, "launch") == 0) {
        launch();
        atomic_fetch_add(&begun, 1);
        for (int i = 0; i < work_of_step; i++)
            cudaStreamSynchronize(stream);
    } else if (strcmp(how, "wait") == 0) {
        launches();
        cudaStreamSynchronize(stream);
        atomic_fetch_add(&begun, 1);
    } else if (strcmp(how, "range") == 0) {
        begins();
        nvtxRangePushA("step");
        has_begun();
        launches();
        nvtxRangePop();
    } else if (strcmp(how, "started") == 0) {
        begins();
        nvtxRangeId_t id = nvtxRangeStartA("step");
        has_begun();
        launches();
        nvtxRangeEnd(id);
    } else {
        begins();
        many_step();
    }
}

static void *run(void *unused)
{
    pthread_barrier_wait(&start);
    for (int i = 0; i < steps; i++)
        make_step();
    return unused;
}

int main(int argc, char **argv)
{
    alarm(400);
    if (argc != 5)
        return 2;
    int threads = atoi(argv[1]);
    steps = atoi(argv[2]);
    how = argv[3];
    work_of_step = atoi(argv[4]);
    use_cuda();
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void (*set)(void (*)(const char *)) = NULL;
    if (driver != NULL)
        *(void **)&set = dlsym(driver, "standin_set_callback");
    if (set == NULL)
        return 3;
    set(called);
    pthread_t *started = calloc((size_t)threads, sizeof *started);
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, run, NULL) != 0)
            return 3;
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    set(NULL);
    for (int i = 0; i < switches && i < SWITCHES; i++)
        printf("%s %ld %ld\n", switched[i].what, switched[i].begun, switched[i].beginning);
    return 0;
}
