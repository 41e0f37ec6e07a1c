/* Uses the GIL in a thread and measures the times with the monotonic clock. The functions are
 * called with the GIL held (ctypes.PyDLL). Python's headers are not needed, because the two API
 * functions that are used have the same types in all versions. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Drops the GIL, takes it, holds it for `us` microseconds, and drops it again. Stores times: the GIL was taken
 * between times[0] and times[1], and dropped between times[2] and times[3]. */
void hold(unsigned us, int64_t *times)
{
    void *state = PyEval_SaveThread();
    times[0] = now();
    PyEval_RestoreThread(state);
    times[1] = now();
    usleep(us);
    times[2] = now();
    state = PyEval_SaveThread();
    times[3] = now();
    PyEval_RestoreThread(state);
}

static atomic_bool is_kept;

/* Holds the GIL for `us` microseconds. */
void keep(unsigned us)
{
    atomic_store(&is_kept, 1);
    usleep(us);
    atomic_store(&is_kept, 0);
}

/* Drops the GIL for `us` microseconds, and then takes it. Stores the times before and after taking it in
 * times[0] and times[1]. */
void wait_for_it(unsigned us, int64_t *times)
{
    void *state = PyEval_SaveThread();
    usleep(us);
    times[0] = now();
    PyEval_RestoreThread(state);
    times[1] = now();
}

/* Like wait_for_it(), but without a fixed time: takes the GIL once another thread holds it in keep(), so the
 * call has to wait. */
void wait_for_keeper(int64_t *times)
{
    void *state = PyEval_SaveThread();
    while (!atomic_load(&is_kept))
        usleep(100);
    times[0] = now();
    PyEval_RestoreThread(state);
    times[1] = now();
}

/* Drops and takes the GIL `count` times. Returns the duration in nanoseconds. */
int64_t hand_off(unsigned count)
{
    int64_t since = now();
    for (unsigned i = 0; i < count; i++)
        PyEval_RestoreThread(PyEval_SaveThread());
    return now() - since;
}

int thread_number(void) { return (int)syscall(SYS_gettid); }
