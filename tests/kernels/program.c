/* Makes steps of three kernels (two of them in a graph), a copy in each direction and a memset, each with a wait for
 * an event. Other threads are in the driver nearly all the time:
 *   program MODE THREADS STEPS
 * MODE: steps     nothing else
 *       waits     from step 10 on, another thread is in a wait most of the time. Each wait lasts until the
 *                 main thread has made some more steps, so the main thread must not be blocked by it
 *       stays     the same, with a single wait until the end
 *       captures  another thread captures a stream from before step 10 until some steps later
 *       streams   another thread creates one stream after the other, and destroys each 20 ms later. The
 *                 stream of step 5 is destroyed when CUPTI is removed
 *       late      in step 8, another thread opens a library that is linked to the driver, and loads a
 *                 module through it, which takes STANDIN_LOAD_US
 *       past      a library opened with RTLD_DEEPBIND launches the same number of kernels, with look-ups
 *                 that cannot be intercepted
 * Variables:
 *   PROGRAM_END       ends in the middle of the run: exit, _exit or kill
 *   PROGRAM_FORKS     first, a child makes the same steps
 *   PROGRAM_PROFILER  a library with which the program records its own kernels
 *   PROGRAM_PROFILED  FROM-TO: the steps that it records, from FROM until before TO
 *   PROGRAM_USES      what the profiler uses: only a subscription, only buffers, or both
 *   PROGRAM_STEP_US   additional time of a step
 *   PROGRAM_TURNS     the threads take turns: while one is in the driver, all others are outside
 * At the end, the program prints the number of rounds that the other threads made during the longest step. Every
 * call is checked: if the context was destroyed, the program ends with status 3. */
#define GPU_DRIVER
#include "program.h"

#include "gpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/* Driver functions that gpu.h lacks. The program gets them in the same way as the functions of
 * gpu.h. */
#if defined(REACH_GPA)
static __typeof__(&cuMemsetD8Async) set_memory;
static __typeof__(&cuStreamQuery) query;
#define REACH_MORE(handle)                                                                       \
    (set_memory = (__typeof__(set_memory))gpu_find(handle, "cuMemsetD8Async", "cuMemsetD8Async"), \
     query = (__typeof__(query))gpu_find(handle, "cuStreamQuery", "cuStreamQuery"))
#else
#define set_memory cuMemsetD8Async
#define query cuStreamQuery
#define REACH_MORE(handle) ((void)(handle))
#endif

static atomic_bool ends, pauses;
static atomic_int paused;
static atomic_int made;
static atomic_long rounds;
static CUfunction first, second, in_graph;

static void launch(CUfunction kernel, CUdeviceptr buffer, CUstream stream)
{
    void *params[] = {&buffer};
    GPU_CHECK(GPU(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

/* The number of the thread that may make its calls now, if threads take turns. The main thread has number 0. */
static atomic_int turn;
static int turns;

static bool waits_for_turn(int own)
{
    while (turns > 0 && atomic_load(&turn) != own && !atomic_load(&ends))
        usleep(50);
    return !atomic_load(&ends);
}

static void ends_turn(int own)
{
    if (turns > 0)
        atomic_store(&turn, (own + 1) % turns);
}

static void *busy(void *number)
{
    int own = (int)(intptr_t)number;
    gpu_use();
    CUstream stream = gpu_stream_create();
    CUdeviceptr words = gpu_allocate(64);
    const char *pause = getenv("PROGRAM_PAUSE_US");
    while (waits_for_turn(own)) {
        if (atomic_load(&pauses)) {
            atomic_fetch_add(&paused, 1);
            for (;;)
                sleep(60);
        }
        if (pause != NULL)
            usleep((unsigned int)atoi(pause));
        for (int i = 0; i < 5; i++)
            gpu_launch_kernel(words, stream);
        GPU_CHECK(set_memory(words, 0, 64, stream));
        GPU_CHECK(query(stream));
        gpu_wait_stream(stream);
        atomic_fetch_add(&rounds, 1);
        ends_turn(own);
    }
    return NULL;
}

/* The stand-in driver calls this function from within its own functions. The calling thread then stays in the
 * driver until the main thread has made some more steps. */
static __thread bool stays;
static int for_steps = 6;
static void in_driver(const char *function)
{
    (void)function;
    if (!stays)
        return;
    int until = atomic_load(&made) + for_steps;
    while (atomic_load(&made) < until && !atomic_load(&ends))
        usleep(200);
}

static void *waits(void *unused)
{
    gpu_use();
    CUstream stream = gpu_stream_create();
    stays = true;
    while (!atomic_load(&ends))
        gpu_wait_stream(stream);
    return unused;
}

static void *loads_late(void *unused)
{
    gpu_use();
    open_beside("late.so", RTLD_NOW);
    void *load = NULL;
    if (sscanf(getenv("LATE_LOAD"), "%p", &load) != 1)
        exit(4);
    atomic_fetch_add(&made, 1);
    ((void (*)(const void *))load)(gpu_ptx);
    return unused;
}

static atomic_bool has_lasting;

static void *short_streams(void *unused)
{
    gpu_use();
    CUdeviceptr words = gpu_allocate(64);
    while (!atomic_load(&ends)) {
        bool lasts = atomic_load(&made) >= 5;
        CUstream stream = gpu_stream_create();
        gpu_launch_kernel(words, stream);
        usleep(20000);
        atomic_store(&has_lasting, lasts);
        while (lasts && standin_removals() == 0 && !atomic_load(&ends))
            usleep(200);
        gpu_stream_destroy(stream);
    }
    return unused;
}

static void *captures(void *unused)
{
    gpu_use();
    CUstream stream = gpu_stream_create();
    CUdeviceptr words = gpu_allocate(64);
    gpu_graph graph = NULL;
    gpu_begin_capture(stream, 2);
    int until = atomic_load(&made) + 4;
    atomic_fetch_add(&made, 1);
    while (atomic_load(&made) < until && !atomic_load(&ends))
        usleep(200);
    gpu_launch_kernel(words, stream);
    if (gpu_end_capture(stream, &graph) != 0)
        gpu_fail("the capture", 901);
    return unused;
}

static pthread_t start(void *(*function)(void *), int number)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, (void *)(intptr_t)number) != 0)
        exit(4);
    return thread;
}

static uint64_t now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static void run(const char *mode, int threads, int steps)
{
    const char *step_us = getenv("PROGRAM_STEP_US");
    uint64_t longest = 0;
    long rounds_then = 0;
    CUmodule module;
    gpu_use();
    GPU_CHECK(GPU(cuModuleLoadData)(&module, gpu_ptx));
    GPU_CHECK(GPU(cuModuleGetFunction)(&first, module, "_Z5firstPm"));
    GPU_CHECK(GPU(cuModuleGetFunction)(&second, module, "_Z6secondPm"));
    GPU_CHECK(GPU(cuModuleGetFunction)(&in_graph, module, "_Z8in_graphPm"));
    CUstream stream = gpu_stream_create();
    CUdeviceptr words = gpu_allocate(64);
    gpu_event event = gpu_event_create();
    uint64_t in[8] = {0}, out[8];
    gpu_graph graph = NULL;
    gpu_begin_capture(stream, 1);
    launch(in_graph, words, stream);
    launch(in_graph, words, stream);
    if (gpu_end_capture(stream, &graph) != 0)
        gpu_fail("the capture", 901);
    void (*past)(CUfunction, CUdeviceptr, CUstream) = NULL;
    if (strcmp(mode, "past") == 0)
        past = (void (*)(CUfunction, CUdeviceptr, CUstream))find(
            open_beside("past.so", RTLD_NOW | RTLD_DEEPBIND), "launch_past");
    const char *own = getenv("PROGRAM_PROFILER"), *profiled = getenv("PROGRAM_PROFILED");
    void *profiler = own != NULL ? open_beside(own, RTLD_NOW) : NULL;
    const char *use = getenv("PROGRAM_USES");
    int from = -1, to = -1;
    if (profiled != NULL && sscanf(profiled, "%d-%d", &from, &to) != 2)
        exit(2);
    pthread_t others[64];
    int count = 0;
    turns = getenv("PROGRAM_TURNS") != NULL ? threads + 1 : 0;
    for (; count < threads; count++)
        others[count] = start(busy, count + 1);
    if (strcmp(mode, "streams") == 0)
        others[count++] = start(short_streams, 0);
    for (int i = 0; i < steps; i++) {
        if (i == from)
            ((void (*)(const char *))find(profiler, "profiler_begins"))(use != NULL ? use : "both");
        if (i == to)
            ((void (*)(void))find(profiler, "profiler_ends"))();
        if (i == 10 && (strcmp(mode, "waits") == 0 || strcmp(mode, "stays") == 0)) {
            if (strcmp(mode, "stays") == 0)
                for_steps = 1 << 20;
            standin_set_callback(in_driver);
            others[count++] = start(waits, 0);
            usleep(20000);
        }
        if (i == 8 && strcmp(mode, "late") == 0) {
            int before = atomic_load(&made);
            others[count++] = start(loads_late, 0);
            while (atomic_load(&made) == before)
                usleep(200);
            usleep(20000);
        }
        if (i == 10 && strcmp(mode, "captures") == 0) {
            int before = atomic_load(&made);
            others[count++] = start(captures, 0);
            while (atomic_load(&made) == before)
                usleep(200);
        }
        if (strcmp(mode, "captures") == 0)
            usleep(1000);
        while (i == 5 && strcmp(mode, "streams") == 0 && !atomic_load(&has_lasting))
            usleep(200);
        waits_for_turn(0);
        if (step_us != NULL)
            usleep((unsigned int)atoi(step_us));
        uint64_t began = now_us();
        long had = atomic_load(&rounds);
        if (past != NULL)
            past(first, words, stream);
        gpu_copy_in(words, in, sizeof in, stream);
        launch(first, words, stream);
        launch(second, words, stream);
        gpu_launch_graph(graph, stream);
        GPU_CHECK(set_memory(words, 0, 16, stream));
        gpu_copy_out(out, words, sizeof out, stream);
        gpu_record(event, stream);
        gpu_wait_event(event);
        atomic_fetch_add(&made, 1);
        ends_turn(0);
        if (now_us() - began > longest) {
            longest = now_us() - began;
            rounds_then = atomic_load(&rounds) - had;
        }
    }
    const char *end = getenv("PROGRAM_END");
    if (end != NULL && strcmp(end, "_exit") == 0)
        _exit(7);
    if (end != NULL && strcmp(end, "exit") == 0) {
        /* While the driver shuts down, it refuses calls, and the other threads would report that as an error. So
         * they pause before the shutdown. */
        atomic_store(&pauses, true);
        while (atomic_load(&paused) < threads)
            usleep(200);
        exit(7);
    }
    if (end != NULL && strcmp(end, "kill") == 0)
        raise(SIGKILL);
    atomic_store(&ends, true);
    while (count-- > 0)
        pthread_join(others[count], NULL);
    fprintf(stderr, "rounds in the longest step: %ld\n", rounds_then);
    GPU_CHECK(GPU(cuCtxSynchronize)());
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    program_begin();
#if defined(REACH_GPA)
    void *driver = dlopen(GPU_LIBRARY, RTLD_NOW);
#else
    void *driver = NULL;
#endif
    REACH_MORE(driver);
    if (getenv("PROGRAM_FORKS") != NULL) {
        pid_t child = fork();
        if (child != 0 && wait_for(child) != 7)
            return 5;
    }
    run(arguments[1], atoi(arguments[2]), atoi(arguments[3]));
    printf("done\n");
    return 7;
}
