// A stand-in for the CUDA driver. Its functions return at once, so the measured time of a call is
// the time that it takes to reach the function.
#include <stdint.h>
#include <string.h>

typedef int CUresult;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_FOUND = 500 };
enum { PER_THREAD_DEFAULT_STREAM = 2 };

// Defines a function that does nothing. `__COUNTER__` makes each body different, so that the
// compiler or linker does not merge the functions into one address.
#define NOTHING(name, ...) \
    CUresult name(__VA_ARGS__) { __asm__ volatile("" ::"i"(__COUNTER__)); return CUDA_SUCCESS; }

NOTHING(cuInit, unsigned flags)
NOTHING(cuGraphLaunch, void *exec, void *stream)
NOTHING(cuGraphLaunch_ptsz, void *exec, void *stream)
NOTHING(cuStreamSynchronize, void *stream)
NOTHING(cuStreamSynchronize_ptsz, void *stream)
NOTHING(cuStreamQuery, void *stream)
NOTHING(cuEventSynchronize, void *event)
NOTHING(cuCtxSynchronize, void)
NOTHING(cuProfilerStart, void)
NOTHING(cuProfilerStop, void)
NOTHING(cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream)
NOTHING(cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream)
NOTHING(cuLaunchKernel, void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
        unsigned shared, void *stream, void **params, void **extra)

CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(void **context) { static int one; *context = &one; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return CUDA_SUCCESS; }

CUresult cuCtxPushCurrent_v2(void *context) { (void)context; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(void **context) { return cuCtxGetCurrent(context); }
CUresult cuCtxGetDevice(int *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuStreamGetCtx(void *stream, void **context) { (void)stream; return cuCtxGetCurrent(context); }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return CUDA_SUCCESS; }
NOTHING(cuEventRecord, void *event, void *stream)
NOTHING(cuEventQuery, void *event)
NOTHING(cuEventDestroy_v2, void *event)
CUresult cuEventCreate(void **event, unsigned flags) { static int one; (void)flags; *event = &one; return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float *ms, void *from, void *to) { (void)from, (void)to; *ms = 0; return CUDA_SUCCESS; }

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static const struct entry { const char *name; void *legacy, *per_thread; } ENTRIES[] = {
#define SAME(name) { #name, (void *)name, (void *)name }
#define BOTH(name) { #name, (void *)name, (void *)name##_ptsz }
    SAME(cuInit), BOTH(cuGraphLaunch), BOTH(cuStreamSynchronize), SAME(cuStreamQuery), SAME(cuEventSynchronize),
    SAME(cuCtxSynchronize), SAME(cuProfilerStart), SAME(cuProfilerStop), SAME(cuLaunchKernel),
    SAME(cuMemcpyHtoDAsync_v2), SAME(cuMemcpyDtoHAsync_v2),
    SAME(cuDriverGetVersion), SAME(cuCtxGetCurrent), SAME(cuStreamIsCapturing), { "cuGetProcAddress", 0, 0 },
};

static void *find(const char *name, int version, uint64_t flags) {
    for (unsigned i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++)
        if (!strcmp(ENTRIES[i].name, name)) {
            if (!ENTRIES[i].legacy) return version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
            return flags & PER_THREAD_DEFAULT_STREAM ? ENTRIES[i].per_thread : ENTRIES[i].legacy;
        }
    return 0;
}

// Looks up a function of this driver for the benchmark itself. Profilers do not intercept this
// look-up, so they do not see calls of the returned pointer.
void *null_function(const char *name) { return find(name, 13000, 0); }

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return (*function = find(name, version, flags)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    CUresult result = cuGetProcAddress(name, function, version, flags);
    if (status) *status = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}
