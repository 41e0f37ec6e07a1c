/* Another preloaded library, which shares a GPU between programs, like those of some container platforms. It defines
 * dlsym and resolves every name that begins with cu or nvml itself, whatever the handle is: first in itself, then in
 * the driver. It also replaces cuGetProcAddress. It counts launches and allocated bytes, allows VGPU_LIMIT bytes (1
 * MiB), and prints the counts at exit.
 *
 * With FAULTY, it looks up its own functions with a null handle. */
#define _GNU_SOURCE
#define STANDIN_SOURCE
#include "standin_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *look_up(void *handle, const char *name);

static look_up *next_dlsym;
static void *itself, *driver;
static atomic_long launches, allocations;
static atomic_size_t used;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static look_up *the_next(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (size_t n = 0; next_dlsym == NULL && n < sizeof versions / sizeof *versions; n++)
        next_dlsym = (look_up *)dlvsym(RTLD_NEXT, "dlsym", versions[n]);
    return next_dlsym;
}

static void open_both(void)
{
    Dl_info here;
#ifndef FAULTY
    if (dladdr((void *)open_both, &here) != 0)
        itself = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
#else
    (void)here;
#endif
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
}

static void *real(const char *name)
{
    pthread_once(&opened, open_both);
    return driver == NULL ? NULL : the_next()(driver, name);
}

#define CALL_REAL(name, ...)                                                      \
    ({                                                                            \
        static __typeof__(&name) the_real;                                        \
        if (the_real == NULL)                                                     \
            the_real = (__typeof__(&name))real(#name);                            \
        the_real == NULL ? CUDA_ERROR_NOT_INITIALIZED : the_real(__VA_ARGS__);    \
    })

void *dlsym(void *handle, const char *name)
{
    if (handle == RTLD_NEXT || (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0))
        return the_next()(handle, name);
    pthread_once(&opened, open_both);
#ifndef FAULTY
    void *own = itself == NULL ? NULL : the_next()(itself, name);
#else
    void *own = the_next()(itself, name);
#endif
    /* If neither this library nor the driver defines the name, calls the dlsym of the next preloaded library. */
    void *found = own != NULL || driver == NULL ? own : the_next()(driver, name);
    return found != NULL ? found : the_next()(handle, name);
}

CUresult cuInit(unsigned int flags)
{
    return CALL_REAL(cuInit, flags);
}

static size_t limit(void)
{
    const char *text = getenv("VGPU_LIMIT");
    return text != NULL ? strtoull(text, NULL, 10) : 1 << 20;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    allocations++;
    if (atomic_fetch_add(&used, bytes) + bytes > limit()) {
        used -= bytes;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CALL_REAL(cuMemAlloc_v2, pointer, bytes);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult result = CALL_REAL(cuMemGetInfo_v2, free, total);
    if (result == CUDA_SUCCESS) {
        *total = limit();
        *free = *total - used;
    }
    return result;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,
                        unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes,
                        CUstream stream, void **params, void **extra)
{
    launches++;
    return CALL_REAL(cuLaunchKernel, function, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes, stream, params,
                     extra);
}

int nvmlInit_v2(void)
{
    return 0;
}

static void put_own(void **found)
{
    static const struct { const char *name; void *own; } OWN[] = {
        {"cuInit", (void *)cuInit},
        {"cuMemAlloc_v2", (void *)cuMemAlloc_v2},
        {"cuMemGetInfo_v2", (void *)cuMemGetInfo_v2},
        {"cuLaunchKernel", (void *)cuLaunchKernel},
        {"cuGetProcAddress", (void *)cuGetProcAddress},
        {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
    };
    for (size_t n = 0; n < sizeof OWN / sizeof *OWN; n++)
        if (found != NULL && *found != NULL && *found == real(OWN[n].name))
            *found = OWN[n].own;
}

CUresult cuGetProcAddress(const char *symbol, void **found, int version, cuuint64_t flags)
{
    CUresult result = CALL_REAL(cuGetProcAddress, symbol, found, version, flags);
    if (result == CUDA_SUCCESS)
        put_own(found);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUresult result = CALL_REAL(cuGetProcAddress_v2, symbol, found, version, flags, status);
    if (result == CUDA_SUCCESS)
        put_own(found);
    return result;
}

__attribute__((destructor)) static void print_counts(void)
{
    fprintf(stderr, "vgpu: %ld kernels, %ld allocations\n", launches, allocations);
}
