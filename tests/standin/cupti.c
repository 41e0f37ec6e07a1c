/* A stand-in for CUPTI that only records kernels, copies and memsets. The client supplies
 * buffers, which the launching threads fill and a thread of this library returns. The records
 * have the layout of NVIDIA's cupti_activity.h (12 and 13). There can be only one subscriber. If
 * a call is in the driver during cuptiFinalize, the call fails and the context is destroyed.
 * STANDIN_CUPTI_LOG names a log of the client's calls and the returned records. */
#define _GNU_SOURCE
#define STANDIN_SOURCE
#include "standin_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUptiResult;
enum {
    SUCCESS = 0,
    INVALID_PARAMETER = 1,
    MAX_LIMIT_REACHED = 12,
    NOT_INITIALIZED = 15,
    NOT_SUPPORTED = 27,
    MULTIPLE_SUBSCRIBERS = 39,
    COPY = 1,
    SET = 2,
    KERNEL = 10,
    KINDS = 64,
    KERNEL_BYTES = 208,
    COPY_BYTES = 96,
    MOST_FULL = 4096,
};
typedef void (*requested_fn)(uint8_t **, size_t *, size_t *);
typedef void (*completed_fn)(CUcontext, uint32_t, uint8_t *, size_t, size_t);

struct buffer {
    uint8_t *memory;
    size_t size, used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool subscribed, worker_runs, worker_busy, forced;
static bool enabled[KINDS];
static requested_fn request;
static completed_fn complete;
static struct buffer current, full[MOST_FULL];
static size_t full_count, dropped;
static unsigned long taken[KINDS], untimed;
static void (*set_tool)(void (*)(const struct standin_work *));
static int (*calls_in_driver)(void), (*begin_removal)(void), (*end_removal)(void);
static unsigned int (*exec_number)(CUgraphExec);

static void say(const char *format, long a, long b)
{
    const char *path = getenv("STANDIN_CUPTI_LOG");
    if (path == NULL)
        return;
    char line[128];
    int length = snprintf(line, sizeof line, format, a, b);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0 && write(file, line, (size_t)length) < 0)
        abort();
    close(file);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Queues the current buffer of records, so that another thread returns it to the client. The caller holds the
 * lock. */
static void hand_over(void)
{
    if (current.memory != NULL && full_count < MOST_FULL) {
        full[full_count++] = current;
        pthread_cond_broadcast(&changed);
    }
    current = (struct buffer){0};
}

static void put(uint8_t *record, size_t at, const void *value, size_t bytes)
{
    memcpy(record + at, value, bytes);
}
#define PUT(at, type, value)                        \
    do {                                            \
        type v = (type)(value);                     \
        put(record, at, &v, sizeof v);              \
    } while (0)

/* Writes CUPTI's record of a kernel, copy or memset. Runs in the thread that launches the work, within the
 * driver. */
static void on_work(const struct standin_work *work)
{
    pthread_mutex_lock(&lock);
    size_t bytes = work->kind == KERNEL ? KERNEL_BYTES : COPY_BYTES;
    if (!enabled[work->kind] || request == NULL) {
        pthread_mutex_unlock(&lock);
        return;
    }
    if (current.memory != NULL && current.used + bytes > current.size)
        hand_over();
    if (current.memory == NULL) {
        size_t most = 0;
        request(&current.memory, &current.size, &most);
        if (current.memory == NULL || current.size < bytes) {
            current = (struct buffer){0};
            dropped++;
            pthread_mutex_unlock(&lock);
            return;
        }
        current.used = 0;
    }
    uint64_t node = (uint64_t)work->exec << 32 | work->node;
    uint8_t *record = current.memory + current.used;
    current.used += bytes;
    memset(record, 0, bytes);
    PUT(0, uint32_t, work->kind);
    PUT(16, uint64_t, work->start);
    PUT(24, uint64_t, work->end);
    if (work->kind == KERNEL) {
        PUT(40, uint32_t, 0);
        PUT(44, uint32_t, 1);
        PUT(48, uint32_t, work->stream);
        PUT(92, uint32_t, work->correlation);
        PUT(104, const char *, work->name);
        PUT(52, uint32_t, work->grid[0]);
        PUT(56, uint32_t, work->grid[1]);
        PUT(60, uint32_t, work->grid[2]);
        PUT(144, uint64_t, node);
        PUT(156, uint32_t, work->exec);
    } else {
        if (work->kind == COPY)
            PUT(4, uint8_t, work->direction);
        PUT(8, uint64_t, work->bytes);
        PUT(32, uint32_t, 0);
        PUT(36, uint32_t, 1);
        PUT(40, uint32_t, work->stream);
        PUT(44, uint32_t, work->correlation);
        PUT(64, uint64_t, node);
    }
    taken[work->kind]++;
    pthread_mutex_unlock(&lock);
}

/* Sets the times to 0 in records of work that the GPU has not done yet. The real CUPTI returns such records at a
 * forced flush. */
static void take_times_away(struct buffer *buffer)
{
    uint64_t at = now();
    for (size_t i = 0; i < buffer->used;) {
        uint8_t *record = buffer->memory + i;
        uint32_t kind;
        uint64_t end;
        memcpy(&kind, record, sizeof kind);
        memcpy(&end, record + 24, sizeof end);
        if (end > at) {
            memset(record + 16, 0, 16);
            untimed++;
        }
        i += kind == KERNEL ? KERNEL_BYTES : COPY_BYTES;
    }
}

static void *worker(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (worker_runs || full_count > 0) {
        if (full_count == 0) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        struct buffer buffer = full[0];
        memmove(full, full + 1, --full_count * sizeof *full);
        worker_busy = true;
        if (forced)
            take_times_away(&buffer);
        completed_fn done = complete;
        pthread_mutex_unlock(&lock);
        done(NULL, 0, buffer.memory, buffer.size, buffer.used);
        pthread_mutex_lock(&lock);
        worker_busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static pthread_t thread;

CUptiResult cuptiGetVersion(uint32_t *version)
{
    const char *text = getenv("STANDIN_CUPTI_API");
    *version = text != NULL ? (uint32_t)atoi(text) : 130000;
    return SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    *timestamp = now();
    return SUCCESS;
}

static void *find_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver != NULL) {
        *(void **)&set_tool = dlsym(driver, "standin_set_tool");
        *(void **)&calls_in_driver = dlsym(driver, "standin_calls");
        *(void **)&begin_removal = dlsym(driver, "standin_begin_removal");
        *(void **)&end_removal = dlsym(driver, "standin_end_removal");
        *(void **)&exec_number = dlsym(driver, "standin_exec_number");
    }
    return driver;
}

CUptiResult cuptiSubscribe(void **subscriber, void *callback, void *argument)
{
    (void)callback, (void)argument;
    const char *has = getenv("STANDIN_CUPTI_TAKEN");
    if (subscribed || (has != NULL && *has != '\0')) {
        say("subscribe refused\n", 0, 0);
        return MULTIPLE_SUBSCRIBERS;
    }
    void *driver = find_driver();
    if (driver == NULL)
        return NOT_INITIALIZED;
    /* Looks up a driver function and calls it, because the real CUPTI does so when a client
     * subscribes. */
    CUresult (*is_there)(CUcontext *) = NULL;
    *(void **)&is_there = dlsym(driver, "cuCtxGetCurrent");
    CUcontext context;
    if (is_there == NULL || is_there(&context) != CUDA_SUCCESS)
        return NOT_INITIALIZED;
    subscribed = true;
    *subscriber = &subscribed;
    say("subscribe\n", 0, 0);
    return SUCCESS;
}

CUptiResult cuptiUnsubscribe(void *subscriber)
{
    if (subscriber != &subscribed || !subscribed)
        return INVALID_PARAMETER;
    subscribed = false;
    return SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(requested_fn on_request, completed_fn on_complete)
{
    pthread_mutex_lock(&lock);
    request = on_request;
    complete = on_complete;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUptiResult cuptiGetGraphExecId(CUgraphExec exec, uint32_t *id)
{
    if (exec_number == NULL)
        return NOT_INITIALIZED;
    *id = exec_number(exec);
    return SUCCESS;
}

/* Waits until STANDIN_CUPTI_TURN polls in a row have found no thread in the driver. In the real driver, CUPTI
 * needs the driver's lock, and does not get it while other threads are always in the driver. */
static void take_turn(void)
{
    const char *looks = getenv("STANDIN_CUPTI_TURN"), *ms = getenv("STANDIN_CUPTI_TAKES_MS");
    for (int quiet = 0; looks != NULL && quiet < atoi(looks); quiet++) {
        usleep(100);
        if (calls_in_driver() > 0)
            quiet = 0;
    }
    if (ms != NULL)
        usleep((useconds_t)atol(ms) * 1000);
}

CUptiResult cuptiActivityEnable(int kind)
{
    if (kind != KERNEL && kind != COPY && kind != SET)
        return INVALID_PARAMETER;
    if (find_driver() == NULL)
        return NOT_INITIALIZED;
    take_turn();
    pthread_mutex_lock(&lock);
    if (!worker_runs) {
        worker_runs = true;
        if (pthread_create(&thread, NULL, worker, NULL) != 0)
            abort();
    }
    enabled[kind] = true;
    pthread_mutex_unlock(&lock);
    set_tool(on_work);
    say("enable %ld\n", kind, 0);
    return SUCCESS;
}

CUptiResult cuptiActivityDisable(int kind)
{
    pthread_mutex_lock(&lock);
    enabled[kind & (KINDS - 1)] = false;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    pthread_mutex_lock(&lock);
    forced = flag != 0;
    hand_over();
    while (full_count > 0 || worker_busy)
        pthread_cond_wait(&changed, &lock);
    forced = false;
    say("flush untimed=%ld dropped=%ld\n", (long)untimed, (long)dropped);
    say("taken kernels=%ld copies=%ld\n", (long)taken[KERNEL], (long)taken[COPY]);
    say("taken sets=%ld\n", (long)taken[SET], 0);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record)
{
    uint8_t *next = buffer;
    if (*record != NULL) {
        uint32_t kind;
        memcpy(&kind, *record, sizeof kind);
        next = *record + (kind == KERNEL ? KERNEL_BYTES : COPY_BYTES);
    }
    if (next >= buffer + valid)
        return MAX_LIMIT_REACHED;
    *record = next;
    return SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *count)
{
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    *count = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUptiResult cuptiFinalize(void)
{
    int in = begin_removal();
    const char *ms = getenv("STANDIN_CUPTI_GOES_MS");
    usleep(ms != NULL ? (useconds_t)atol(ms) * 1000 : 2000);
    set_tool(NULL);
    pthread_mutex_lock(&lock);
    bool ran = worker_runs;
    worker_runs = false;
    memset(enabled, 0, sizeof enabled);
    request = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (ran)
        pthread_join(thread, NULL);
    subscribed = false;
    say("finalize in=%ld destroyed=%ld\n", in, end_removal());
    return SUCCESS;
}

/* Functions of CUPTI that PyTorch is linked to and that the stand-in does not implement. They only exist so that
 * PyTorch can be loaded. */
#define NOT_SUPPORTED_HERE(name) \
    CUptiResult name(void);      \
    CUptiResult name(void) { return NOT_SUPPORTED; }

NOT_SUPPORTED_HERE(cuptiActivityEnableCudaEventDeviceTimestamps)
NOT_SUPPORTED_HERE(cuptiActivityEnableDriverApi)
NOT_SUPPORTED_HERE(cuptiActivityEnableRuntimeApi)
NOT_SUPPORTED_HERE(cuptiActivityPopExternalCorrelationId)
NOT_SUPPORTED_HERE(cuptiActivityPushExternalCorrelationId)
NOT_SUPPORTED_HERE(cuptiActivityRegisterTimestampCallback)
NOT_SUPPORTED_HERE(cuptiActivitySetAttribute)
NOT_SUPPORTED_HERE(cuptiEnableCallback)
NOT_SUPPORTED_HERE(cuptiEnableDomain)
NOT_SUPPORTED_HERE(cuptiGetCallbackName)
NOT_SUPPORTED_HERE(cuptiGetResultString)
