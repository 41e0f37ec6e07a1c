// Times the calls of one function (of the driver, the runtime, NVTX or named.c): calls DOOR CALL THREADS ROUNDS
//   DOOR  the way in which the function is reached:
//         plt      the driver's exported symbol, linked into this program
//         dlsym    the same symbol, found with dlsym
//         getproc  the pointer that cuGetProcAddress_v2 returns
//         runtime  the CUDA runtime's exported symbol, linked into this program; the runtime calls the driver
//         nvtx     an NVTX function, called through NVTX's headers
//         named    a function of another library (named.c), linked into this program
//   CALL  launch   launch a graph
//         wait     synchronize a stream
//         step     one launch and one wait
//         query    query a stream that has no work; no profiler counts this call (not for runtime)
//         range    push and pop a range (only for nvtx)
//         decode   31 kernel launches and a wait, like an iteration of an inference engine. Each thread has its own
//                  stream. The first thread waits for its stream, the others for an event (only for getproc)
//         one      like decode, but all threads launch into one stream (only for getproc)
//         waits    14 times 13 kernel launches and a wait for the stream (only for getproc)
//         chaos    kernel launches, and waits of two kinds, in random order (only for getproc)
//         entry    a function whose entry can be patched (only for named)
//         slot     a function whose entry cannot be patched (only for named)
//   THREADS is the number of threads that make the calls at the same time. ROUNDS is the number of measurements.
// Prints one JSON object: the CPU nanoseconds per call (minimum and median over the rounds; in each round, the median
// over the threads) and "turns", the number of times that all threads together made CALL, also outside the rounds. One
// CALL is several calls for step, decode, one, waits and chaos. CPU time is measured so that the result does not depend
// on whether there are fewer cores than threads.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAS_NVTX
#endif

int cuGraphLaunch(void *, void *);
int cuStreamSynchronize(void *);
int cuStreamQuery(void *);
int cudaGraphLaunch(void *, void *);
int cudaStreamSynchronize(void *);
int named_entry(void *, void *);
int named_slot(void *, void *);

typedef int (*call2)(void *, void *);
typedef int (*call1)(void *);
typedef int (*call_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                           void **, void **);
static call2 launch;
static call1 wait_, query, wait_event;
static call_kernel kernel;

enum { MAX_THREADS = 64, MAX_ROUNDS = 64 };
static const double ROUND_NS = 15e6;
static const long MOST_CALLS = 20000000;

// Number of call sites in the body of the measured loop. If all calls were made at one call site, some
// processors would mispredict the indirect call more often than in real programs.
enum { SITES = 4 };
#define LOOP(body) for (long i = 0; i < n; i += SITES) { body; body; body; body; }
// The loop functions, each named after its DOOR (the way to reach the function) and its CALL (the function
// to call). For plt, runtime and named, the compiler calls a linked function through the PLT. The DOORs dlsym
// and getproc share the functions `pointer_…`, which call through a pointer that is kept in a register.
static void plt_launch(long n) { LOOP(cuGraphLaunch(0, 0)) }
static void plt_wait(long n) { LOOP(cuStreamSynchronize(0)) }
static void plt_query(long n) { LOOP(cuStreamQuery(0)) }
static void plt_step(long n) { LOOP(cuGraphLaunch(0, 0); cuStreamSynchronize(0)) }
static void runtime_launch(long n) { LOOP(cudaGraphLaunch(0, 0)) }
static void runtime_wait(long n) { LOOP(cudaStreamSynchronize(0)) }
static void runtime_step(long n) { LOOP(cudaGraphLaunch(0, 0); cudaStreamSynchronize(0)) }
static void entry(long n) { LOOP(named_entry(0, 0)) }
static void slot(long n) { LOOP(named_slot(0, 0)) }
static void pointer_launch(long n) { call2 f = launch; LOOP(f(0, 0)) }
static void pointer_wait(long n) { call1 f = wait_; LOOP(f(0)) }
static void pointer_query(long n) { call1 f = query; LOOP(f(0)) }
static void pointer_step(long n) { call2 f = launch; call1 g = wait_; LOOP(f(0, 0); g(0)) }

#ifdef HAS_NVTX
static void nvtx_range(long n) { LOOP(nvtxRangePushA("execute_context_1(512)_generation_7(7)"); nvtxRangePop()) }
#endif
enum { DECODE = 32 };
#define KERNEL(number, stream) f((void *)(0x10000ul + 64 * (number)), 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
static __thread long thread;
static void decode(long n, void *stream) {
    call_kernel f = kernel;
    call1 g = thread == 0 ? wait_ : wait_event;
    LOOP(for (unsigned k = 1; k < DECODE; k++) KERNEL(k, stream); g(stream))
}

static void pointer_decode(long n) { decode(n, (void *)(0x100000ul + 0x1000 * thread)); }
enum { WAITS = 14, LAUNCHES = 13 };
static void pointer_waits(long n) {
    call_kernel f = kernel;
    call1 g = wait_;
    void *stream = (void *)(0x100000ul + 0x1000 * thread);
    LOOP(for (unsigned w = 0; w < WAITS; w++) {
        for (unsigned k = 1; k <= LAUNCHES; k++) KERNEL(k, stream);
        g(stream);
    })
}
static void pointer_one(long n) { decode(n, (void *)0x100000ul); }

// Each turn of the loop makes DECODE calls: kernel launches, and a wait after every 1 to 256 launches.
// The number of launches before a wait is a random power of two, so that no sequence of calls repeats.
static void pointer_chaos(long n) {
    static uint64_t random = 1;
    static unsigned left;
    call_kernel f = kernel;
    call1 waits[] = { wait_, wait_event };
    LOOP(for (unsigned k = 0; k < DECODE; k++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        if (left-- > 0) { KERNEL(random >> 44, 0); continue; }
        waits[random >> 63](0);
        left = 1u << (random >> 32) % 9;
    })
}

static const struct { const char *door, *call; void (*loop)(long); } LOOPS[] = {
    { "plt", "launch", plt_launch },         { "plt", "wait", plt_wait },
    { "plt", "query", plt_query },           { "plt", "step", plt_step },
    { "runtime", "launch", runtime_launch }, { "runtime", "wait", runtime_wait },
    { "runtime", "step", runtime_step },
    { "named", "entry", entry },             { "named", "slot", slot },
    { "pointer", "launch", pointer_launch }, { "pointer", "wait", pointer_wait },
    { "pointer", "query", pointer_query },   { "pointer", "step", pointer_step },
#ifdef HAS_NVTX
    { "nvtx", "range", nvtx_range },
#endif
    { "pointer", "decode", pointer_decode }, { "pointer", "one", pointer_one },
    { "pointer", "waits", pointer_waits },    { "pointer", "chaos", pointer_chaos },
};

static void (*loop)(long);
static int threads, rounds, calls_a_turn = 1;
static long turns, made[MAX_THREADS];
static double cost[MAX_ROUNDS][MAX_THREADS];
static pthread_barrier_t together;

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double timed(long n) {
    double from = cpu_ns();
    loop(n);
    return cpu_ns() - from;
}

static void *work(void *argument) {
    long id = (long)argument;
    thread = id;
    loop(turns / SITES); // warm-up: resolves symbols, and makes this thread's first call
    made[id] += turns / SITES;
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&together);
        cost[round][id] = timed(turns) / turns / calls_a_turn;
        made[id] += turns;
    }
    return 0;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "calls: %s\n", what);
    exit(2);
}

int main(int argc, char **argv) {
    need(argc == 5, "usage: calls plt|dlsym|getproc|runtime|nvtx|named "
                    "launch|wait|step|query|range|decode|one|chaos|entry|slot THREADS ROUNDS");
    const char *door = argv[1], *call = argv[2];
    threads = atoi(argv[3]), rounds = atoi(argv[4]);
    need(threads > 0 && threads <= MAX_THREADS && rounds > 0 && rounds <= MAX_ROUNDS, "too many threads or rounds");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    need(driver != 0, "no libcuda.so.1");
    if (!strcmp(door, "dlsym")) {
        *(void **)&launch = dlsym(driver, "cuGraphLaunch");
        *(void **)&wait_ = dlsym(driver, "cuStreamSynchronize");
        *(void **)&query = dlsym(driver, "cuStreamQuery");
        door = "pointer";
    } else if (!strcmp(door, "getproc")) {
        int (*get)(const char *, void **, int, uint64_t, int *);
        *(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
        need(get && !get("cuGraphLaunch", (void **)&launch, 10000, 0, 0) &&
             !get("cuStreamSynchronize", (void **)&wait_, 2000, 0, 0) &&
             !get("cuEventSynchronize", (void **)&wait_event, 2000, 0, 0) &&
             !get("cuLaunchKernel", (void **)&kernel, 4000, 0, 0) &&
             !get("cuStreamQuery", (void **)&query, 2000, 0, 0), "cuGetProcAddress_v2 failed");
        door = "pointer";
    }
    for (unsigned i = 0; i < sizeof LOOPS / sizeof *LOOPS; i++)
        if (!strcmp(LOOPS[i].door, door) && !strcmp(LOOPS[i].call, call)) loop = LOOPS[i].loop;
    need(loop != 0, "no such door or call");
    if (!strcmp(call, "step")) calls_a_turn = 2;
    // A profiler may stay inactive until the process uses CUDA. The functions of these two DOORs are not
    // CUDA functions, so one CUDA call is made first.
    if (!strcmp(door, "nvtx") || !strcmp(door, "named")) cuGraphLaunch(0, 0);
    if (!strcmp(call, "decode") || !strcmp(call, "one") || !strcmp(call, "chaos")) calls_a_turn = DECODE;
    if (!strcmp(call, "waits")) calls_a_turn = WAITS * (LAUNCHES + 1);

    long probe = 1000, extra = 0;
    double took = timed(probe);
    extra += probe;
    while (took < ROUND_NS / 8 && probe < MOST_CALLS / 4) {
        probe *= 2;
        took = timed(probe);
        extra += probe;
    }
    turns = took > 0 ? (long)(ROUND_NS / took * probe) : MOST_CALLS;
    if (turns > MOST_CALLS) turns = MOST_CALLS;
    turns = turns < SITES * SITES ? SITES * SITES : turns / (SITES * SITES) * (SITES * SITES);

    pthread_t handle[MAX_THREADS];
    pthread_barrier_init(&together, 0, threads);
    for (long id = 1; id < threads; id++) need(!pthread_create(&handle[id], 0, work, (void *)id), "no thread");
    work(0);
    for (long id = 1; id < threads; id++) pthread_join(handle[id], 0);

    double by_round[MAX_ROUNDS];
    for (int round = 0; round < rounds; round++) by_round[round] = median(cost[round], threads);
    double middle = median(by_round, rounds);
    for (long id = 0; id < threads; id++) extra += made[id];
    printf("{\"min\": %.3f, \"median\": %.3f, \"turns\": %ld}\n", by_round[0], middle, extra);
    return 0;
}
