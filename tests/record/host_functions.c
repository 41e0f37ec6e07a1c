/* Enqueues host functions in a stream: in each of 40 steps `adds` twice, `subtracts` once, and `in_graph` once, which
 * is captured into a graph. Prints a line `NAME OFFSET` for `adds` and `subtracts`, with the function's offset in the
 * program in hexadecimal. Exits with status 7 if each function ran as often as it was enqueued, with its own data. */
#define _GNU_SOURCE
#include "standin_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 40, PAUSE_US = 10000 };

#define CHECK(call)                      \
    do {                                 \
        if ((call) != CUDA_SUCCESS)      \
            exit(1);                     \
    } while (0)

void adds(void *count)
{
    ++*(long *)count;
}

void subtracts(void *count)
{
    --*(long *)count;
}

void in_graph(void *count)
{
    *(long *)count += 100;
}

static void print(const char *name, void (*function)(void *))
{
    Dl_info info;
    if (dladdr((void *)function, &info) == 0)
        exit(1);
    printf("%s %#zx\n", name, (size_t)((char *)function - (char *)info.dli_fbase));
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    long count = 0, captured = 0;
    print("adds", adds);
    print("subtracts", subtracts);
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 0));
    for (int step = 0; step < STEPS; step++) {
        CHECK(cuLaunchHostFunc(stream, adds, &count));
        CHECK(cuLaunchHostFunc(stream, subtracts, &count));
        CHECK(cuLaunchHostFunc(stream, adds, &count));
        CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cuLaunchHostFunc(stream, in_graph, &captured));
        CHECK(cuStreamEndCapture(stream, &graph));
        CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuGraphExecDestroy(exec));
        CHECK(cuGraphDestroy(graph));
        usleep(PAUSE_US);
    }
    return count == STEPS && captured == 100L * STEPS ? 7 : 1;
}
