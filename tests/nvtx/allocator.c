/* A program whose allocator opens an NVTX range for each block. */
#include "loop.h"

#include <pthread.h>
#include <unistd.h>

void *__libc_malloc(size_t size);

static int ready;

void *malloc(size_t size)
{
    if (!ready)
        return __libc_malloc(size);
    nvtxRangePushA("step of the allocator");
    void *block = __libc_malloc(size);
    nvtxRangePop();
    return block;
}

static void *run(void *unused)
{
    for (int n = 0; n < 50; n++) {
        nvtxRangePushA("step");
        cudaDeviceSynchronize();
        nvtxRangePop();
    }
    return unused;
}

int main(void)
{
    pthread_t threads[8];
    alarm(200);
    use_cuda();
    nvtxRangePushA("NVTX itself allocates at its first range");
    nvtxRangePop();
    ready = 1;
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
