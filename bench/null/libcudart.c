// A stand-in for the CUDA runtime, which only passes calls to the driver. It finds the driver's
// functions as NVIDIA's runtime does: dlopen, one dlsym for cuGetProcAddress_v2, then
// cuGetProcAddress_v2 for each function.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static int (*graph_launch)(void *, void *);
static int (*stream_synchronize)(void *);
static int (*ctx_synchronize)(void);

__attribute__((constructor)) static void find_driver(void) {
    int (*get)(const char *, void **, int, uint64_t, int *);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver || !(*(void **)&get = dlsym(driver, "cuGetProcAddress_v2"))) abort();
    if (get("cuGraphLaunch", (void **)&graph_launch, 10000, 0, 0)) abort();
    if (get("cuStreamSynchronize", (void **)&stream_synchronize, 2000, 0, 0)) abort();
    if (get("cuCtxSynchronize", (void **)&ctx_synchronize, 2000, 0, 0)) abort();
}

int cudaGraphLaunch(void *exec, void *stream) { return graph_launch(exec, stream); }
int cudaStreamSynchronize(void *stream) { return stream_synchronize(stream); }
int cudaDeviceSynchronize(void) { return ctx_synchronize(); }
