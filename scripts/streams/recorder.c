/* A preloaded library that records the CUDA driver calls of its process as CSV:
 *
 *   cc -O2 -shared -fPIC -o librecorder.so recorder.c
 *   STREAM_OUT=/tmp/out.%p.csv LD_PRELOAD=$PWD/librecorder.so program
 *
 * `%p` is the process id. The file is written when the process ends, or not at all if no call was recorded. Its
 * columns are `t_ns,thread,call,arg,stream`, with the original handles (pack.py renames them). A program marks the
 * start of its N-th iteration with tllmprof_mark(N).
 *
 * This is a tool for making test data. It takes some shortcuts that the product must not take: a stack frame in
 * dlsym for the driver's names, one libcuda per process, and a table of fixed size. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define TLS static __thread __attribute__((tls_model("initial-exec")))

/* ---- records: each thread appends to its own chunks, which outlive the thread ---- */

enum shape { NOTHING, KERNEL, GRAPH, STREAM, EVENT, EVENT_STREAM, STREAM_EVENT, SIZE, NUMBER };

struct record {
    uint64_t ns, argument, stream;
    const char *call;
    uint32_t shape;
};

enum { CHUNK = 1 << 14 };

struct chunk {
    struct chunk *next;
    unsigned used;
    struct record records[CHUNK];
};

struct log {
    struct log *next;
    struct chunk *first, *last;
    int number; /* thread number, in the order of the threads' first records; set when the file is written */
    struct chunk *at;
    unsigned position;
};

static struct log *logs;
static pid_t owner; /* process that writes the file; a child after vfork shares this memory and must not write */
TLS struct log *mine;

static void *pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct record *room(void)
{
    if (mine == NULL) {
        struct log *log = pages(sizeof *log);
        if (log == NULL)
            return NULL;
        if ((log->first = log->last = pages(sizeof *log->first)) == NULL)
            return NULL;
        log->next = __atomic_load_n(&logs, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&logs, &log->next, log, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        }
        mine = log;
    }
    if (mine->last->used == CHUNK) {
        struct chunk *chunk = pages(sizeof *chunk);
        if (chunk == NULL)
            return NULL;
        __atomic_store_n(&mine->last->next, chunk, __ATOMIC_RELEASE);
        mine->last = chunk;
    }
    return &mine->last->records[mine->last->used];
}

static void record(const char *call, enum shape shape, const void *argument, const void *stream)
{
    struct record *at = room();
    if (at == NULL)
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = now.tv_sec * 1000000000ull + now.tv_nsec;
    *at = (struct record){ns, (uintptr_t)argument, (uintptr_t)stream, call, shape};
    __atomic_store_n(&mine->last->used, mine->last->used + 1, __ATOMIC_RELEASE);
}

EXPORT void tllmprof_mark(long n)
{
    record("mark", NUMBER, (void *)n, NULL);
}

/* ---- the calls ---- */

typedef void *handle;
typedef int (*get_proc_address_1)(const char *, void **, int, uint64_t);
typedef int (*get_proc_address_2)(const char *, void **, int, uint64_t, int *);

/* The first fields of CUlaunchConfig, up to the stream. */
struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    handle stream;
};

/* The recorded driver functions. Each is a line ROW(identifier, exported name, call, shape, argument, stream,
 * parameters, arguments). */
#define LAUNCH_PARAMETERS                                                                                              \
    (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, handle s,    \
     void **p, void **x)
#define COOPERATIVE_PARAMETERS                                                                                         \
    (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, handle s,    \
     void **p)
#define COPY_PARAMETERS (uintptr_t to, uintptr_t from, size_t n, handle s)
#define BLOCKING_COPY_PARAMETERS (uintptr_t to, uintptr_t from, size_t n)
#define CALLS(ROW, WAIT)                                                                                               \
    ROW(LaunchKernel, "launch", KERNEL, f, s, LAUNCH_PARAMETERS, (f, gx, gy, gz, bx, by, bz, sh, s, p, x))             \
    ROW(LaunchCooperativeKernel, "launch_cooperative", KERNEL, f, s, COOPERATIVE_PARAMETERS,                           \
        (f, gx, gy, gz, bx, by, bz, sh, s, p))                                                                         \
    ROW(LaunchKernelEx, "launch_ex", KERNEL, f, c != NULL ? c->stream : NULL,                                          \
        (const struct launch_config *c, handle f, void **p, void **x), (c, f, p, x))                                   \
    ROW(GraphLaunch, "graph_launch", GRAPH, g, s, (handle g, handle s), (g, s))                                        \
    ROW(MemcpyAsync, "memcpy_async", SIZE, (void *)n, s, COPY_PARAMETERS, (to, from, n, s))                            \
    ROW(MemcpyHtoDAsync, "memcpy_htod_async", SIZE, (void *)n, s, COPY_PARAMETERS, (to, from, n, s))                   \
    ROW(MemcpyDtoHAsync, "memcpy_dtoh_async", SIZE, (void *)n, s, COPY_PARAMETERS, (to, from, n, s))                   \
    ROW(MemcpyHtoD, "memcpy_htod", SIZE, (void *)n, NULL, BLOCKING_COPY_PARAMETERS, (to, from, n))                     \
    ROW(EventRecord, "event_record", EVENT_STREAM, e, s, (handle e, handle s), (e, s))                                 \
    ROW(EventRecordWithFlags, "event_record", EVENT_STREAM, e, s, (handle e, handle s, unsigned x), (e, s, x))         \
    ROW(EventQuery, "event_query", EVENT, e, NULL, (handle e), (e))                                                    \
    ROW(StreamWaitEvent, "stream_wait_event", STREAM_EVENT, s, e, (handle s, handle e, unsigned x), (s, e, x))         \
    ROW(StreamBeginCapture, "begin_capture", STREAM, s, NULL, (handle s, int m), (s, m))                               \
    ROW(StreamBeginCaptureToGraph, "begin_capture", STREAM, s, NULL,                                                   \
        (handle s, handle g, const void *d, const void *e, size_t n, int m), (s, g, d, e, n, m))                       \
    ROW(StreamEndCapture, "end_capture", STREAM, s, NULL, (handle s, handle *g), (s, g))                               \
    WAIT(StreamSynchronize, "stream_sync", STREAM, s, (handle s), (s))                                                 \
    WAIT(EventSynchronize, "event_sync", EVENT, e, (handle e), (e))                                                    \
    WAIT(CtxSynchronize, "ctx_sync", NOTHING, NULL, (handle c), (c))                                                   \
    WAIT(MemcpyDtoH, "memcpy_dtoh", SIZE, (void *)n, BLOCKING_COPY_PARAMETERS, (to, from, n))

/* Each name may stand for several real functions: versions, kinds of default stream, and
 * different results of dlsym and of the driver's look-up. Each of these real functions gets its
 * own wrapper. This is the maximum number of real functions per name. */
enum { SLOTS = 6 };

#define WRAPPER(name, slot, call, shape, argument, stream, parameters, arguments)                                      \
    static int name##_##slot parameters                                                                                \
    {                                                                                                                  \
        record(call, shape, argument, stream);                                                                         \
        return ((int(*) parameters)name##_real[slot])arguments;                                                        \
    }
#define WAITING(name, slot, call, shape, argument, parameters, arguments)                                              \
    static int name##_##slot parameters                                                                                \
    {                                                                                                                  \
        record(call, shape, argument, NULL);                                                                           \
        int result = ((int(*) parameters)name##_real[slot])arguments;                                                  \
        record(call "_end", shape, argument, NULL);                                                                    \
        return result;                                                                                                 \
    }
#define WRAPPERS(name) {name##_0, name##_1, name##_2, name##_3, name##_4, name##_5}
#define ROW(name, call, shape, argument, stream, parameters, arguments)                                                \
    static void *name##_real[SLOTS];                                                                                   \
    WRAPPER(name, 0, call, shape, argument, stream, parameters, arguments)                                             \
    WRAPPER(name, 1, call, shape, argument, stream, parameters, arguments)                                             \
    WRAPPER(name, 2, call, shape, argument, stream, parameters, arguments)                                             \
    WRAPPER(name, 3, call, shape, argument, stream, parameters, arguments)                                             \
    WRAPPER(name, 4, call, shape, argument, stream, parameters, arguments)                                             \
    WRAPPER(name, 5, call, shape, argument, stream, parameters, arguments)
#define WAIT(name, call, shape, argument, parameters, arguments)                                                       \
    static void *name##_real[SLOTS];                                                                                   \
    WAITING(name, 0, call, shape, argument, parameters, arguments)                                                     \
    WAITING(name, 1, call, shape, argument, parameters, arguments)                                                     \
    WAITING(name, 2, call, shape, argument, parameters, arguments)                                                     \
    WAITING(name, 3, call, shape, argument, parameters, arguments)                                                     \
    WAITING(name, 4, call, shape, argument, parameters, arguments)                                                     \
    WAITING(name, 5, call, shape, argument, parameters, arguments)
CALLS(ROW, WAIT)
#undef ROW
#undef WAIT

static const struct {
    const char *name;
    void **real;
    void *wrappers[SLOTS];
} table[] = {
#define ROW(name, ...) {"cu" #name, name##_real, WRAPPERS(name)},
    CALLS(ROW, ROW)
#undef ROW
};

static int ours(void *function)
{
    Dl_info there, here;
    return dladdr(function, &there) && dladdr((void *)ours, &here) && there.dli_fbase == here.dli_fbase;
}

/* Returns the wrapper for the driver function `real`, which the program looked up by `name`. Returns `real` itself
 * if its calls are not recorded or all SLOTS are taken. */
static void *wrapped(const char *name, void *real)
{
    size_t length = strlen(name);
    static const char *const suffixes[] = {"_ptsz", "_ptds", "_v2"};
    for (int i = 0; i < 3; i++) {
        size_t suffix = strlen(suffixes[i]);
        if (length > suffix && memcmp(name + length - suffix, suffixes[i], suffix) == 0)
            length -= suffix;
    }
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        if (strlen(table[row].name) != length || memcmp(table[row].name, name, length) != 0)
            continue;
        if (ours(real))
            return real;
        for (int slot = 0; slot < SLOTS; slot++) {
            void *there = NULL;
            if (__atomic_compare_exchange_n(&table[row].real[slot], &there, real, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE) ||
                there == real)
                return table[row].wrappers[slot];
        }
    }
    return real;
}

/* ---- how the program gets the functions: the driver's look-up, dlsym, and linking ---- */

static void *real_look_up_1, *real_look_up_2;
static int look_up_1(const char *name, void **function, int version, uint64_t flags);
static int look_up_2(const char *name, void **function, int version, uint64_t flags, int *status);

static void found(const char *name, void **function, int version)
{
    if (function == NULL || *function == NULL || name == NULL || ours(*function))
        return;
    if (strcmp(name, "cuGetProcAddress") != 0 && strcmp(name, "cuGetProcAddress_v2") != 0) {
        *function = wrapped(name, *function);
    } else if (version >= 12000) {
        real_look_up_2 = *function;
        *function = (void *)look_up_2;
    } else {
        real_look_up_1 = *function;
        *function = (void *)look_up_1;
    }
}

static int look_up_1(const char *name, void **function, int version, uint64_t flags)
{
    int result = ((get_proc_address_1)real_look_up_1)(name, function, version, flags);
    if (result == 0)
        found(name, function, version);
    return result;
}

static int look_up_2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    int result = ((get_proc_address_2)real_look_up_2)(name, function, version, flags, status);
    if (result == 0)
        found(name, function, version);
    return result;
}

typedef void *(*dlsym_function)(void *, const char *);
static dlsym_function real_dlsym;

static dlsym_function find_dlsym(void)
{
    void *there = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (there == NULL)
        there = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real_dlsym = (dlsym_function)there;
}

static __attribute__((noinline)) void *driver_symbol(void *library, const char *name)
{
    void *there = real_dlsym(library, name);
    Dl_info about;
    if (there == NULL || !dladdr(there, &about) || about.dli_fname == NULL ||
        strstr(about.dli_fname, "libcuda.so") == NULL)
        return there;
    found(name, &there, strcmp(name, "cuGetProcAddress_v2") == 0 ? 12000 : 11030);
    return there;
}

/* The real dlsym uses its return address to find its caller. So for names other than the
 * driver's, this dlsym ends with a tail call to the real one (-O2), which leaves no frame of
 * this library on the stack. */
EXPORT void *dlsym(void *restrict library, const char *restrict name)
{
    dlsym_function real = real_dlsym;
    if (real == NULL)
        real = find_dlsym();
    if (library != RTLD_NEXT && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z')
        return driver_symbol(library, name);
    return real(library, name);
}

/* Returns the driver's function for a program that is linked to the driver and calls the function directly. */
static void *linked(const char *name)
{
    static void *driver;
    if (real_dlsym == NULL)
        find_dlsym();
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver != NULL ? real_dlsym(driver, name) : NULL;
}

enum { CUDA_ERROR_NOT_INITIALIZED = 3 };

#define LINKED(name, stem, parameters, arguments)                                                                      \
    EXPORT int name parameters                                                                                         \
    {                                                                                                                  \
        static int(*wrapper) parameters;                                                                               \
        if (wrapper == NULL) {                                                                                         \
            void *real = linked(#name);                                                                                \
            if (real == NULL)                                                                                          \
                return CUDA_ERROR_NOT_INITIALIZED;                                                                     \
            wrapper = (int(*) parameters)wrapped("cu" stem, real);                                                     \
        }                                                                                                              \
        return wrapper arguments;                                                                                      \
    }
#define LINK(name, parameters, arguments) LINKED(cu##name, #name, parameters, arguments)
#define LINK_PTSZ(name, parameters, arguments)                                                                         \
    LINK(name, parameters, arguments) LINKED(cu##name##_ptsz, #name, parameters, arguments)
#define LINK_V2(name, per_thread, parameters, arguments)                                                               \
    LINKED(cu##name##_v2, #name, parameters, arguments)                                                                \
    LINKED(cu##name##_v2##per_thread, #name, parameters, arguments)

LINK_PTSZ(LaunchKernel, LAUNCH_PARAMETERS, (f, gx, gy, gz, bx, by, bz, sh, s, p, x))
LINK_PTSZ(LaunchCooperativeKernel, COOPERATIVE_PARAMETERS, (f, gx, gy, gz, bx, by, bz, sh, s, p))
LINK_PTSZ(LaunchKernelEx, (const struct launch_config *c, handle f, void **p, void **x), (c, f, p, x))
LINK_PTSZ(GraphLaunch, (handle g, handle s), (g, s))
LINK_PTSZ(MemcpyAsync, COPY_PARAMETERS, (to, from, n, s))
LINK_V2(MemcpyHtoDAsync, _ptsz, COPY_PARAMETERS, (to, from, n, s))
LINK_V2(MemcpyDtoHAsync, _ptsz, COPY_PARAMETERS, (to, from, n, s))
LINK_V2(MemcpyHtoD, _ptds, BLOCKING_COPY_PARAMETERS, (to, from, n))
LINK_V2(MemcpyDtoH, _ptds, BLOCKING_COPY_PARAMETERS, (to, from, n))
LINK_PTSZ(EventRecord, (handle e, handle s), (e, s))
LINK(EventQuery, (handle e), (e))
LINK(EventSynchronize, (handle e), (e))
LINK_PTSZ(StreamWaitEvent, (handle s, handle e, unsigned x), (s, e, x))
LINK_PTSZ(StreamSynchronize, (handle s), (s))
LINK(CtxSynchronize, (void), ())

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    if (real_look_up_1 == NULL && (real_look_up_1 = linked("cuGetProcAddress")) == NULL)
        return CUDA_ERROR_NOT_INITIALIZED;
    return look_up_1(name, function, version, flags);
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    if (real_look_up_2 == NULL && (real_look_up_2 = linked("cuGetProcAddress_v2")) == NULL)
        return CUDA_ERROR_NOT_INITIALIZED;
    return look_up_2(name, function, version, flags, status);
}

/* ---- writing the file at the end ---- */

struct output {
    int file;
    size_t used;
    char text[1 << 16];
};

static void flush(struct output *output)
{
    for (size_t done = 0; done < output->used;) {
        ssize_t written = write(output->file, output->text + done, output->used - done);
        if (written <= 0)
            break;
        done += written;
    }
    output->used = 0;
}

static void put_line(struct output *output, const struct record *r, uint64_t ns, int thread)
{
    if (output->used + 256 > sizeof output->text)
        flush(output);
    char argument[24] = "", stream[24] = "";
    if (r->shape == SIZE || r->shape == NUMBER)
        snprintf(argument, sizeof argument, "%lu", r->argument);
    else if (r->shape != NOTHING)
        snprintf(argument, sizeof argument, "0x%lx", r->argument);
    size_t length = strlen(r->call);
    int copy = r->shape == SIZE && strcmp(r->call + length - 4, "_end") != 0;
    if (copy || r->shape == KERNEL || r->shape == GRAPH || r->shape == EVENT_STREAM || r->shape == STREAM_EVENT)
        snprintf(stream, sizeof stream, "0x%lx", r->stream);
    output->used +=
        snprintf(output->text + output->used, 256, "%lu,%d,%s,%s,%s\n", ns, thread, r->call, argument, stream);
}

static struct record *next_of(struct log *log)
{
    while (log->at != NULL && log->position >= __atomic_load_n(&log->at->used, __ATOMIC_ACQUIRE)) {
        if (log->at->used < CHUNK)
            return NULL;
        log->at = __atomic_load_n(&log->at->next, __ATOMIC_ACQUIRE);
        log->position = 0;
    }
    return log->at != NULL ? &log->at->records[log->position] : NULL;
}

static int open_output(void)
{
    const char *pattern = getenv("STREAM_OUT");
    if (pattern == NULL)
        return -1;
    char path[4096];
    size_t used = 0;
    for (; *pattern != '\0' && used + 16 < sizeof path; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            used += snprintf(path + used, 12, "%d", (int)getpid());
            pattern++;
        } else {
            path[used++] = *pattern;
        }
    }
    path[used] = '\0';
    return open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
}

/* Writes the records of all threads, merged by time. Other threads may still run, so records that they add from now
 * on may be missing. */
static void write_all(void)
{
    static int written;
    if (getpid() != owner || __atomic_load_n(&logs, __ATOMIC_ACQUIRE) == NULL ||
        __atomic_exchange_n(&written, 1, __ATOMIC_ACQ_REL))
        return;
    static struct output output;
    if ((output.file = open_output()) < 0)
        return;
    struct log *all = logs;
    for (struct log *log = all; log != NULL; log = log->next) {
        log->at = log->first;
        log->position = 0;
        log->number = -1;
    }
    output.used = snprintf(output.text, 256, "t_ns,thread,call,arg,stream\n");
    uint64_t began = 0;
    int threads = 0;
    for (;;) {
        struct log *earliest = NULL;
        for (struct log *log = all; log != NULL; log = log->next) {
            struct record *next = next_of(log);
            if (next != NULL && (earliest == NULL || next->ns < next_of(earliest)->ns))
                earliest = log;
        }
        if (earliest == NULL)
            break;
        struct record *next = next_of(earliest);
        if (earliest->number < 0)
            earliest->number = threads++;
        if (began == 0)
            began = next->ns;
        put_line(&output, next, next->ns - began, earliest->number);
        earliest->position++;
    }
    flush(&output);
    close(output.file);
}

static void forked(void)
{
    logs = NULL;
    mine = NULL;
    owner = getpid();
}

static __attribute__((constructor)) void begin(void)
{
    owner = getpid();
    pthread_atfork(NULL, NULL, forked);
}

static __attribute__((destructor)) void end(void)
{
    write_all();
}

/* Writes the file before a process ends with _exit, which runs no destructors. Children of multiprocessing and many
 * servers end like this. */
EXPORT void _exit(int status)
{
    write_all();
    if (real_dlsym == NULL)
        find_dlsym();
    void (*real)(int) = (void (*)(int))real_dlsym(RTLD_NEXT, "_exit");
    real(status);
    __builtin_unreachable();
}
