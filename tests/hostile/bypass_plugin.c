/* The library that bypass.c loads. It uses CUDA. */
#include <stddef.h>

typedef struct {
    unsigned x, y, z;
} dim3;

int cudaSetDevice(int);
int cudaMalloc(void **, size_t);
int cudaStreamCreate(void **);
int cudaStreamSynchronize(void *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);

static int kernel;

int run(int count)
{
    dim3 one = {1, 1, 1};
    void *memory = NULL, *stream = NULL;
    void *arguments[] = {&memory};
    int error = cudaSetDevice(0) | cudaMalloc(&memory, 64) | cudaStreamCreate(&stream);
    for (int k = 0; k < count; k++)
        error |= cudaLaunchKernel(&kernel, one, one, arguments, 0, stream) | cudaStreamSynchronize(stream);
    return error;
}
