/* The GPU's clock and its work: each stream does its pieces of work in order, one after the other.
 *
 * The clock is the host's (CLOCK_MONOTONIC), or a virtual clock with STANDIN_CLOCK=virtual. The virtual clock
 * advances only in three cases: a wait advances it to the end of the awaited work, each call that enqueues work
 * by STANDIN_CALL_NS, and standin_pass() by its argument. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool is_virtual;
static uint64_t virtual_now = 1000000000;
static uint64_t work_ns, stream_ns, call_ns, pieces;
static int work_log = -1;

static uint64_t number(const char *variable)
{
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void on_load(void)
{
    const char *clock = getenv("STANDIN_CLOCK");
    is_virtual = clock != NULL && strcmp(clock, "virtual") == 0;
    work_ns = number("STANDIN_WORK_NS");
    stream_ns = number("STANDIN_STREAM_NS");
    call_ns = number("STANDIN_CALL_NS");
}

uint64_t now(void)
{
    if (is_virtual)
        return virtual_now;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Advances the virtual clock by `ns`, as if the host did other work. */
void standin_pass(unsigned long ns)
{
    driver_lock();
    virtual_now += ns;
    driver_unlock();
}

void pass_call(void)
{
    virtual_now += call_ns;
    if (is_virtual || call_ns == 0)
        return;
    for (uint64_t until = now() + call_ns; now() < until;)
        ;
}

/* Sleeps until the time `until` of the GPU's clock. The caller must not hold the driver's lock. */
void sleep_until(uint64_t until)
{
    driver_lock();
    if (is_virtual && virtual_now < until)
        virtual_now = until;
    driver_unlock();
    int saved_errno = errno;
    for (uint64_t at = now(); at < until; at = now()) {
        uint64_t left = until - at; /* the clock is read once: a second reading may be after `until` */
        struct timespec time = {(time_t)(left / 1000000000), (long)(left % 1000000000)};
        nanosleep(&time, NULL);
    }
    errno = saved_errno;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns the time when the stream has done all its work. The legacy stream waits for the blocking streams of its
 * context, so their work is included. */
static uint64_t busy_until(CUstream stream)
{
    uint64_t until = stream->busy_until;
    if (is_legacy(stream)) {
        for (CUstream other = all_streams; other != NULL; other = other->next)
            if (other->context == stream->context && !(other->flags & CU_STREAM_NON_BLOCKING))
                until = later(until, other->busy_until);
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING) && stream->context != NULL) {
        until = later(until, stream->context->legacy.busy_until);
    }
    return until;
}

uint64_t done_at(CUcontext context, CUstream stream)
{
    if (stream != NULL)
        return busy_until(stream);
    uint64_t until = context == NULL ? 0 : context->legacy.busy_until;
    for (CUstream other = all_streams; other != NULL; other = other->next)
        if (other->context == context)
            until = later(until, other->busy_until);
    return until;
}

uint64_t mark(CUstream stream)
{
    uint64_t at = later(now(), busy_until(stream));
    stream->busy_until = at;
    return at;
}

/* Logs a piece of work as a line PID STREAM DEVICE FROM UNTIL. */
static void log_work(CUstream stream, uint64_t from, uint64_t until)
{
    const char *path = getenv("STANDIN_WORK_LOG");
    if (path == NULL || *path == '\0')
        return;
    int saved_errno = errno;
    if (work_log < 0) {
        int low = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        work_log = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, 100);
        if (low >= 0)
            close(low);
    }
    char line[128];
    int length = snprintf(line, sizeof line, "%d %p %d %llu %llu\n", getpid(), (void *)stream,
                          stream->context == NULL ? -1 : stream->context->device,
                          (unsigned long long)from, (unsigned long long)until);
    if (work_log >= 0 && write(work_log, line, (size_t)length) < 0)
        work_log = -1;
    errno = saved_errno;
}

bool streams_have_times(void)
{
    return stream_ns > 0;
}

void hold_back(CUstream stream, uint64_t at)
{
    stream->busy_until = later(stream->busy_until, at);
}

struct span work(CUstream stream)
{
    uint64_t from = later(now(), busy_until(stream));
    uint64_t until = from + (stream_ns > 0 ? stream_ns : work_ns * (1 + pieces++ % 5));
    stream->busy_until = until;
    log_work(stream, from, until);
    return (struct span){from, until};
}
