/* Eight threads, one per device, have no context. Each of their calls must be refused and leave its result variable
 * unchanged. Meanwhile one thread launches on all devices in turn, and pushes and pops the contexts for this. */
#define _GNU_SOURCE
#define GPU_DRIVER
#include "hostile.h"

enum { DEVICES = 8, ROUNDS = 8, POISON = 0x5eadbee };

static struct loop loops[DEVICES];
static CUcontext contexts[DEVICES];
static atomic_int rounds;
static unsigned int wrong[DEVICES];

/* Returns 1 if the driver accepted the call, or changed the call's result variable; else 0. */
static unsigned int refused(CUresult result, int is_untouched)
{
    return !(result == CUDA_ERROR_INVALID_CONTEXT && is_untouched);
}

static unsigned int refusals(void)
{
    CUdevice device = POISON;
    size_t free = POISON, total = POISON;
    CUdeviceptr pointer = POISON;
    CUstream stream = (CUstream)POISON;
    CUevent event = (CUevent)POISON;
    char to[8] = "poison";
    unsigned int count = refused(cuCtxGetDevice(&device), device == POISON);
    count += refused(cuMemGetInfo(&free, &total), free == POISON && total == POISON);
    count += refused(cuMemAlloc(&pointer, 64), pointer == POISON);
    count += refused(cuStreamCreate(&stream, 0), stream == (CUstream)POISON);
    count += refused(cuEventCreate(&event, 0), event == (CUevent)POISON);
    count += refused(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 1);
    count += refused(cuCtxSynchronize(), 1);
    count += refused(cuMemcpyDtoH(to, POISON, sizeof to), strcmp(to, "poison") == 0);
    count += refused(cuMemcpyDtoHAsync(to, POISON, sizeof to, NULL), strcmp(to, "poison") == 0);
    return count;
}

static void *without_context(void *argument)
{
    unsigned int *count = argument;
    for (int last = -1; last < ROUNDS;) {
        int now = atomic_load(&rounds);
        if (now == last)
            usleep(100);
        else
            *count += refusals();
        last = now;
    }
    return argument;
}

int main(void)
{
    hostile_begin();
    struct loop_options options = loop_defaults();
    options.kernels = 1;
    GPU_CHECK(cuInit(0));
    /* At this point, no thread has a context, so the driver must refuse all of their calls. */
    printf("before: %u\n", refusals());
    gpu_use();
    for (int n = 0; n < DEVICES; n++) {
        GPU_CHECK(cuDevicePrimaryCtxRetain(&contexts[n], n));
        gpu_context = contexts[n];
        loop_open(&loops[n], &options);
    }
    GPU_CHECK(cuCtxSetCurrent(NULL));
    pthread_t threads[DEVICES];
    for (int n = 0; n < DEVICES; n++)
        threads[n] = start_thread(without_context, &wrong[n]);
    for (int round = 0; round < ROUNDS; round++) {
        for (int n = 0; n < DEVICES; n++) {
            CUcontext popped = NULL, current = (CUcontext)POISON;
            GPU_CHECK(cuCtxPushCurrent(contexts[n]));
            loop_step(&loops[n], round);
            GPU_CHECK(cuCtxPopCurrent(&popped));
            GPU_CHECK(cuCtxGetCurrent(&current));
            if (popped != contexts[n] || current != NULL)
                printf("device %d: another context is current\n", n);
        }
        atomic_fetch_add(&rounds, 1);
        usleep(500);
    }
    unsigned int all = 0;
    for (int n = 0; n < DEVICES; n++) {
        pthread_join(threads[n], NULL);
        all += wrong[n];
        GPU_CHECK(cuCtxPushCurrent(contexts[n]));
        print_result(&loops[n]);
    }
    printf("in between: %u\n", all);
    return 6;
}
