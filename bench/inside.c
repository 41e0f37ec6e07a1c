// Measures the cost of a call inside a window (a profiled range of steps), when the program's own
// work has evicted the profiler's library from the caches since the last call. Usage: inside STEPS [evict]
//
// Each step is a call of `named_step`, which makes 22 driver calls, like a decoding step of an
// engine: copies, a graph launch, kernel launches, waits. Without `evict`, a store to `marks` comes
// before and after each call, so that scripts/bench-inside can split a memory trace of this program
// into calls. With `evict`, the caches are swept before each call, and each call is timed, both through the profiler
// and directly in the driver. Prints one JSON object: the address of `marks`, and for each kind of
// call its index in `marks`, the number of such calls in a step, and the median nanoseconds of a
// call, both through the profiler and directly in the driver (0 without `evict`).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <x86intrin.h>

void named_step(void (*body)(void));

enum kind { NONE, BEGIN, TO_DEVICE, GRAPH, KERNEL, TO_HOST, EVENT_WAIT, STREAM_WAIT, END, KINDS };
static const struct { const char *name, *function; } NAMES[KINDS] = {
    [BEGIN] = { "step begins", 0 },
    [TO_DEVICE] = { "copy to device", "cuMemcpyHtoDAsync_v2" },
    [GRAPH] = { "graph launch", "cuGraphLaunch" },
    [KERNEL] = { "kernel launch", "cuLaunchKernel" },
    [TO_HOST] = { "copy to host", "cuMemcpyDtoHAsync_v2" },
    [EVENT_WAIT] = { "event wait", "cuEventSynchronize" },
    [STREAM_WAIT] = { "stream wait", "cuStreamSynchronize" },
    [END] = { "step ends", 0 },
};
static const enum kind STEP[] = {
    TO_DEVICE, TO_DEVICE, TO_DEVICE, TO_DEVICE, TO_DEVICE, TO_DEVICE, GRAPH, KERNEL, KERNEL, KERNEL, KERNEL,
    EVENT_WAIT, KERNEL, KERNEL, KERNEL, KERNEL, TO_HOST, STREAM_WAIT, EVENT_WAIT, STREAM_WAIT, STREAM_WAIT, STREAM_WAIT,
};
enum { CALLS = sizeof STEP / sizeof *STEP, LINE = 64, MOST = 1 << 16 };
static void *const STREAM = (void *)0x100000ul;

// One cache line for each kind of call. A store to a line marks the beginning of a call of that
// kind; a store to the first line (`NONE`) marks the end of a call.
static volatile char marks[KINDS][LINE] __attribute__((aligned(64)));

typedef int (*launch)(void *, void *);
typedef int (*wait_)(void *);
typedef int (*copy)(void *, const void *, size_t, void *);
typedef int (*kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static void *through[KINDS], *direct[KINDS];

static void call(enum kind kind, void *function) {
    switch (kind) {
    case TO_DEVICE:
    case TO_HOST: ((copy)function)((void *)0x5000, (void *)0x6000, 64, STREAM); break;
    case GRAPH: ((launch)function)((void *)0x7000, STREAM); break;
    case KERNEL: ((kernel)function)((void *)0x8000, 1, 1, 1, 1, 1, 1, 0, STREAM, 0, 0); break;
    default: ((wait_)function)(STREAM);
    }
}

static int evicts;
static double took[2][KINDS][MOST];
static int taken[2][KINDS];
static double ns_per_tick;

// Memory that a sweep accesses to evict the caches, as the work of a program would. `data` has
// `DATA` bytes, twice the size of an L2 cache of 2 MiB. `code` has `CODE_LINES` cache lines of code,
// which are spread over `CODE` bytes in many pages. Together, these lines are several times the size
// of an L1 instruction cache.
enum { DATA = 4 << 20, CODE = 2 << 20, CODE_LINES = 4096 };
static char *data, *code;

static void prepare_sweep(void) {
    data = mmap(0, DATA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    code = mmap(0, CODE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED || code == MAP_FAILED) exit(2);
    memset(data, 1, DATA);
    // Each of these cache lines contains a jump to the next one. The last one returns.
    int apart = CODE / CODE_LINES;
    for (int i = 0; i < CODE_LINES; i++) {
        char *line = code + (size_t)i * apart + i % (apart / LINE) * LINE;
        char *next = code + (size_t)(i + 1) * apart + (i + 1) % (apart / LINE) * LINE;
        int32_t by = (int32_t)(next - line - 5);
        line[0] = i == CODE_LINES - 1 ? (char)0xc3 : (char)0xe9;
        memcpy(line + 1, &by, sizeof by);
    }
}

static void sweep(void) {
    for (int i = 0; i < DATA; i += LINE) ((volatile char *)data)[i]++;
    ((void (*)(void))code)();
}

static void note(int way, enum kind kind, uint64_t ticks) {
    if (taken[way][kind] < MOST) took[way][kind][taken[way][kind]++] = ticks * ns_per_tick;
}

static uint64_t now(void) {
    unsigned processor;
    _mm_lfence();
    uint64_t ticks = __rdtscp(&processor);
    _mm_lfence();
    return ticks;
}

static void timed(int way, enum kind kind, void *function) {
    sweep();
    uint64_t since = now();
    call(kind, function);
    note(way, kind, now() - since);
}

static uint64_t began;
static void body(void) {
    marks[NONE][0] = 1;
    if (evicts) note(0, BEGIN, now() - began);
    for (int i = 0; i < CALLS; i++) {
        if (evicts) {
            timed(1, STEP[i], direct[STEP[i]]);
            timed(0, STEP[i], through[STEP[i]]);
            continue;
        }
        marks[STEP[i]][0] = 1;
        call(STEP[i], through[STEP[i]]);
        marks[NONE][0] = 1;
    }
    if (evicts) sweep(), began = now();
    marks[END][0] = 1;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(int way, enum kind kind) {
    int n = taken[way][kind];
    qsort(took[way][kind], n, sizeof **took[way], ascending);
    return n ? took[way][kind][n / 2] : 0;
}

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "inside: %s\n", what);
    exit(2);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    need(argc >= 2, "usage: inside STEPS [evict]");
    evicts = argc > 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    need(driver != 0, "no libcuda.so.1");
    int (*get)(const char *, void **, int, uint64_t, int *);
    void *(*own)(const char *);
    *(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
    *(void **)&own = dlsym(driver, "null_function");
    need(get && own, "not the null driver");
    for (int kind = TO_DEVICE; kind < END; kind++) {
        need(!get(NAMES[kind].function, &through[kind], 12000, 0, 0), NAMES[kind].function);
        direct[kind] = own(NAMES[kind].function);
    }
    // The profiler's record begins at the first CUDA call, so a CUDA call is made before the measurement.
    call(STREAM_WAIT, through[STREAM_WAIT]);
    double from = seconds();
    uint64_t since = now();
    if (evicts) prepare_sweep();
    while (evicts && seconds() < from + 0.05) {}
    ns_per_tick = evicts ? (seconds() - from) * 1e9 / (now() - since) : 1;
    long steps = atol(argv[1]);
    for (long n = 0; n < steps; n++) {
        if (evicts) sweep(), began = now();
        marks[BEGIN][0] = 1;
        named_step(body);
        marks[NONE][0] = 1;
        if (evicts) note(0, END, now() - began);
    }
    printf("{\"marks\": %lu", (unsigned long)marks);
    for (int kind = BEGIN; kind < KINDS; kind++) {
        int calls = kind == BEGIN || kind == END;
        for (int i = 0; i < CALLS; i++) calls += STEP[i] == (enum kind)kind;
        printf(", \"%s\": {\"kind\": %d, \"calls\": %d, \"through\": %.1f, \"direct\": %.1f}", NAMES[kind].name, kind, calls,
               median(0, kind), median(1, kind));
    }
    printf("}\n");
    return 0;
}
