/* A CUDA program that uses NVTX incorrectly: it pushes ranges without a pop, pops without a push, and ends
 * ranges on other threads.
 *
 *   own_ranges [--waits-elsewhere] [--quick-exit] */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

enum { STEPS = 40 };

static cudaStream_t stream;
static nvtxRangeId_t step_range;

static void *wait_for_step(void *unused)
{
    (void)unused;
    cudaStreamSynchronize(stream);
    nvtxRangeEnd(step_range);
    return NULL;
}

int main(int argc, char **argv)
{
    int elsewhere = 0, quick = 0;
    for (int i = 1; i < argc; i++) {
        elsewhere |= strcmp(argv[i], "--waits-elsewhere") == 0;
        quick |= strcmp(argv[i], "--quick-exit") == 0;
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    if (cudaStreamCreate(&stream) != cudaSuccess ||
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess ||
        cudaStreamEndCapture(stream, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        return 1;
    nvtxDomainHandle_t domain = nvtxDomainCreateA("own");
    /* NVTX returns the nesting level of the range. It would return another level if another
     * library had ranges on the same stack. */
    printf("pop of nothing: %d\n", nvtxRangePop());
    for (int n = 0; n < STEPS; n++) {
        step_range = nvtxRangeStartA("own step");
        int outer = nvtxRangePushA("own kept");
        int inner = nvtxRangePushA("own inner");
        nvtxEventAttributes_t attributes = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
        attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
        attributes.message.ascii = "own in domain";
        int in_domain = nvtxDomainRangePushEx(domain, &attributes);
        if (cudaGraphLaunch(exec, stream) != cudaSuccess)
            return 1;
        int domain_popped = nvtxDomainRangePop(domain);
        int popped = nvtxRangePop();
        printf("%d: %d %d %d %d %d\n", n, outer, inner, in_domain, domain_popped, popped);
        pthread_t thread;
        if (elsewhere && pthread_create(&thread, NULL, wait_for_step, NULL) == 0)
            pthread_join(thread, NULL);
        else
            wait_for_step(NULL);
    }
    fflush(stdout);
    if (quick)
        _exit(7);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return 0;
}
