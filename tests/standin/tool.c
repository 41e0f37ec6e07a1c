/* Imitates the effects of a profiler in the driver. The profiler is notified of all GPU work. If it is removed
 * while a call is in the driver, the context is destroyed. While there is a profiler, the GPU does one piece of
 * work at a time, unless STANDIN_STREAM_NS is set. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static _Atomic(void (*)(const struct standin_work *)) tool;
static atomic_int in_driver;
static atomic_bool removing, destroyed;
static atomic_uint calls, removals;
static __thread unsigned int correlation;
static long call_us, kernel_ns;
static uint64_t busy_until; /* guarded by the lock */

__attribute__((constructor)) static void on_load(void)
{
    const char *text = getenv("STANDIN_CALL_US");
    call_us = text != NULL ? atol(text) : 0;
    text = getenv("STANDIN_KERNEL_NS");
    kernel_ns = text != NULL ? atol(text) : 0;
}

static uint64_t realtime(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void pause_ns(uint64_t ns)
{
    int saved_errno = errno;
    struct timespec left = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = saved_errno;
}

void tool_enter(void)
{
    atomic_fetch_add(&in_driver, 1);
    if (atomic_load(&removing))
        atomic_store(&destroyed, true);
    correlation = atomic_fetch_add(&calls, 1) + 1;
    if (call_us > 0)
        pause_ns((uint64_t)call_us * 1000);
}

void tool_leave(void)
{
    atomic_fetch_sub(&in_driver, 1);
}

bool tool_has_destroyed(void)
{
    return atomic_load(&destroyed);
}

void tool_run(CUstream stream, const struct node *work, unsigned int exec, unsigned int node,
              struct span span)
{
    static const int kinds[] = {[KERNEL_NODE] = 10, [COPY_NODE] = 1, [SET_NODE] = 2};
    void (*notify)(const struct standin_work *) = atomic_load(&tool);
    if (notify == NULL && kernel_ns == 0)
        return;
    uint64_t start = realtime();
    uint64_t end;
    if (streams_have_times()) {
        start += span.from - now(); /* the same moment, by the clock of CUPTI */
        end = start + (span.until - span.from);
    } else {
        if (start < busy_until)
            start = busy_until;
        end = busy_until = start + (uint64_t)kernel_ns;
    }
    struct standin_work done = {
        .kind = kinds[work->kind],
        .name = work->name,
        .bytes = work->bytes,
        .direction = work->direction,
        .start = start,
        .end = end,
        .stream = stream->number,
        .correlation = correlation,
        .exec = exec,
        .node = node,
        .grid = {work->grid[0], work->grid[1], work->grid[2]},
    };
    if (notify != NULL)
        notify(&done);
}

void tool_wait(void)
{
    driver_lock();
    uint64_t until = busy_until;
    driver_unlock();
    uint64_t at = realtime();
    if (at < until)
        pause_ns(until - at);
}

void standin_set_tool(void (*function)(const struct standin_work *))
{
    atomic_store(&tool, function);
}

int standin_calls(void)
{
    return atomic_load(&in_driver);
}

int standin_begin_removal(void)
{
    atomic_store(&removing, true);
    atomic_fetch_add(&removals, 1);
    int in = atomic_load(&in_driver);
    if (in > 0)
        atomic_store(&destroyed, true);
    return in;
}

unsigned int standin_removals(void)
{
    return atomic_load(&removals);
}

int standin_end_removal(void)
{
    atomic_store(&removing, false);
    return atomic_load(&destroyed);
}
