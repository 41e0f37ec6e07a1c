/* Makes ranges and marks of every kind on THREADS threads at once, STEPS times (0: forever), and counts the ranges
 * of each kind that have ended:
 *   ranges FILE THREADS STEPS return|kill
 * Some names are new each time, some are always the same, and some are registered. */
#define _GNU_SOURCE
#include "../nvtx/loop.h"
#include "lines.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

static long steps;
static nvtxDomainHandle_t engine;
static nvtxStringHandle_t inner;

static void *run(void *argument)
{
    struct line *line = argument;
    nvtxEventAttributes_t attributes = registered(inner);
    atomic_store(&line->number, (uint64_t)gettid());
    for (long n = 0; steps == 0 || n < steps; n++) {
        char name[32];
        snprintf(name, sizeof name, "step %ld", n);
        nvtxRangePushA(name);
        nvtxRangeId_t id = nvtxRangeStartA("crossing");
        nvtxDomainRangePushEx(engine, &attributes);
        memset(name, '?', sizeof name - 1);
        nvtxMarkA("here");
        count(&line->marked);
        nvtxDomainRangePop(engine);
        count(&line->pushed);
        nvtxRangePop();
        count(&line->pushed);
        nvtxRangeEnd(id);
        count(&line->started);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    lines_open(argv[1]);
    int threads = atoi(argv[2]);
    steps = atol(argv[3]);
    engine = nvtxDomainCreateA("engine");
    inner = nvtxDomainRegisterStringA(engine, "inner");
    use_cuda();
    nvtxRangePushA("before the window");
    launch();
    nvtxRangePushA("over its end");
    pthread_t *started = calloc((size_t)threads, sizeof *started);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, run, &lines[i]) != 0)
            return 3;
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    /* This launch begins iteration 1, which closes a window that consists of iteration 0. */
    launch();
    nvtxRangePushA("behind the window");
    nvtxRangePop();
    nvtxMarkA("behind the window");
    nvtxRangePop();
    nvtxRangePop();
    launch();
    puts("done");
    fflush(stdout);
    if (strcmp(argv[4], "kill") == 0)
        raise(SIGKILL);
    return 7;
}
