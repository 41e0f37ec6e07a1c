/* Makes steps of four pieces of work on each of two streams, with two waits at the end:
 *   two_streams MODE STEPS KERNEL_NS COPY_BYTES
 * MODE: at_once   nothing orders the streams
 *       events    the second stream waits for an event after the first stream's work
 *       each      each stream waits for events of the other, piece by piece
 *       legacy    the second stream is the legacy default stream, and the first is a blocking one
 *       host      the host waits for the first stream before it launches on the second
 *       copies    like `events`, but the second stream copies
 *       graphs    like `events`, but the first stream launches its kernels in a graph
 *       short     like `events`, but the first stream has 16 times as many pieces */
#include "../../examples/slow/gpu.h"

#include <string.h>

enum { PIECES = 4, MANY = 16 };

static int (*record)(void *, void *), (*wait_event)(void *, void *, unsigned);

static int is(const char *mode, const char *other)
{
    return strcmp(mode, other) == 0;
}

/* Makes the second stream's later work wait for the first stream's. */
static void order(void *event, void *first, void *second)
{
    check("cuEventRecord", record(event, first));
    check("cuStreamWaitEvent", wait_event(second, event, 0));
}

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    const char *mode = arguments[1];
    uint64_t ns = strtoull(arguments[3], NULL, 10);
    size_t bytes = strtoull(arguments[4], NULL, 10);
    gpu_start(0);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*create)(void **, unsigned) = find(driver, "cuStreamCreate");
    CUresult (*create_event)(void **, unsigned) = find(driver, "cuEventCreate");
    record = find(driver, "cuEventRecord");
    wait_event = find(driver, "cuStreamWaitEvent");
    void *first, *second, *event, *graph = NULL, *host = NULL;
    unsigned long long memory = 0;
    check("cuStreamCreate", create(&first, is(mode, "legacy") ? 0 : 1 /* non-blocking */));
    check("cuStreamCreate", create(&second, 1));
    check("cuEventCreate", create_event(&event, 2 /* CU_EVENT_DISABLE_TIMING */));
    if (is(mode, "legacy"))
        second = NULL;
    if (is(mode, "copies")) {
        memory = gpu_allocate(bytes);
        host = calloc(1, bytes);
        void *pin = dlsym(driver, "cuMemHostRegister_v2");
        if (pin != NULL)
            check("cuMemHostRegister_v2",
                  ((CUresult (*)(void *, size_t, unsigned))pin)(host, bytes, 0));
    }
    stream = first;
    if (is(mode, "graphs"))
        gpu_capture(&graph, PIECES, ns);
    for (int step = 0; step < atoi(arguments[2]); step++) {
        for (int piece = 0; piece < (is(mode, "short") ? MANY : 1) * PIECES; piece++) {
            stream = first;
            if (graph == NULL)
                gpu_launch(ns);
            else if (piece == 0)
                gpu_launch_graph(graph);
            if (is(mode, "each")) {
                order(event, first, second);
                stream = second;
                gpu_launch(ns);
                order(event, second, first);
            }
        }
        stream = first;
        if (is(mode, "events") || is(mode, "copies") || is(mode, "graphs") || is(mode, "short"))
            order(event, first, second);
        if (is(mode, "host"))
            gpu_wait();
        stream = second;
        for (int piece = 0; piece < PIECES && !is(mode, "each"); piece++) {
            if (is(mode, "copies"))
                gpu_copy_in_async(memory, host, bytes);
            else
                gpu_launch(ns);
        }
        gpu_wait();
        stream = first;
        if (!is(mode, "host"))
            gpu_wait();
    }
    puts("done");
}
