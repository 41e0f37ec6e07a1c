/* The state of the driver in a process: initialized, forked from a process that initialized it, or shut down. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static enum { FRESH, INITIALISED, FORKED, DEINITIALISED } state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(void (*)(const char *)) callback;
static long wait_us;

void driver_lock(void)
{
    pthread_mutex_lock(&lock);
}

void driver_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Runs in a forked child. As with the real driver, a child cannot use the driver if its parent initialized it. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    log_forget();
    if (state == INITIALISED)
        state = FORKED;
}

__attribute__((constructor)) static void on_load(void)
{
    const char *text = getenv("STANDIN_WAIT_US");
    wait_us = text != NULL ? atol(text) : 0;
    pthread_atfork(driver_lock, driver_unlock, in_child);
}

/* Shuts the driver down. Like the real driver, the stand-in cannot be used after its destructors have run. */
__attribute__((destructor)) static void on_exit_of_process(void)
{
    driver_lock();
    state = DEINITIALISED;
    driver_unlock();
}

/* Looks up the driver's own functions with several kinds of handles, as newer drivers do during their
 * initialization. */
static void *look_around(void *unused)
{
    static const char *const names[] = {"cuInit",         "cuDriverGetVersion", "cuGetExportTable", "cuGetProcAddress_v2",
                                        "cuCtxSynchronize", "cuGraphLaunch",      "cuMemAlloc_v2"};
    void *itself = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *const handles[] = {itself, RTLD_DEFAULT, RTLD_NEXT};
    for (size_t handle = 0; handle < sizeof handles / sizeof *handles; handle++)
        for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
            dlsym(handles[handle], names[name]);
            dlvsym(handles[handle], names[name], "NONE_1");
        }
    int version = 0;
    void *found = NULL;
    CUresult (*get_version)(int *) = (CUresult(*)(int *))dlsym(itself, "cuDriverGetVersion");
    __typeof__(&cuGetProcAddress_v2) ask = (__typeof__(ask))dlsym(itself, "cuGetProcAddress_v2");
    if (get_version == NULL || get_version(&version) != CUDA_SUCCESS || ask == NULL ||
        ask("cuGraphLaunch", &found, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL) != CUDA_SUCCESS)
        abort();
    return unused;
}

static void look_around_everywhere(void)
{
    pthread_t other;
    look_around(NULL);
    if (pthread_create(&other, NULL, look_around, NULL) == 0)
        pthread_join(other, NULL);
}

CUresult driver_init(void)
{
    static pthread_once_t looked_around = PTHREAD_ONCE_INIT;
    if (getenv("STANDIN_LOOKS_UP") != NULL)
        pthread_once(&looked_around, look_around_everywhere);
    driver_lock();
    if (state == FRESH)
        state = INITIALISED;
    CUresult result = driver_state();
    driver_unlock();
    return result;
}

CUresult driver_state(void)
{
    switch (state) {
    case INITIALISED:
        return CUDA_SUCCESS;
    case DEINITIALISED:
        return CUDA_ERROR_DEINITIALIZED;
    default:
        return CUDA_ERROR_NOT_INITIALIZED;
    }
}

CUresult call_admit(const char *function, const void *first, enum need need)
{
    static const char *const marks[] = {"UNINITIALIZED", "", "FORKED", "DEINITIALIZED"};
    CUresult result = driver_state();
    const char *mark = marks[state];
    if (result == CUDA_SUCCESS && need == NEEDS_CONTEXT && !has_current_context()) {
        result = CUDA_ERROR_INVALID_CONTEXT;
        mark = "NOCONTEXT";
    }
    if (tool_has_destroyed()) {
        result = CUDA_ERROR_LAUNCH_FAILED;
        mark = "DESTROYED";
    }
    log_call(mark, function, "", first);
    return result;
}

/* Returns the error that a test requests for this function: STANDIN_FAILS is a comma-separated list of
 * FUNCTION=ERROR. */
CUresult injected(const char *function)
{
    const char *at = getenv("STANDIN_FAILS");
    size_t length = strlen(function);
    for (; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, function, length) == 0 && at[length] == '=')
            return (CUresult)atoi(at + length + 1);
    return CUDA_SUCCESS;
}

void use_after_end(const char *function, const char *what)
{
    fprintf(stderr, "stand-in: %s was given %s that is gone\n", function, what);
    abort();
}

void standin_set_callback(void (*function)(const char *))
{
    atomic_store(&callback, function);
}

CUresult call_end(const char *function, CUresult result)
{
    tool_leave();
    void (*called)(const char *) = atomic_load(&callback);
    if (called != NULL)
        called(function);
    return result;
}

void host_wait(uint64_t until)
{
    sleep_until(until);
    wait_for_host_functions();
    tool_wait();
    if (wait_us <= 0)
        return;
    int saved_errno = errno;
    struct timespec left = {wait_us / 1000000, wait_us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = saved_errno;
}
