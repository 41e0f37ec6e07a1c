/* Makes STEPS steps (0: forever), with a pause of PAUSE microseconds after each, while a second
 * thread opens ranges. Most ranges have names that are used only once, like names of requests.
 *   requests STEPS PAUSE
 * One range of each step has a registered name in a domain. */
#define _GNU_SOURCE
#include "../nvtx/loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

enum { REQUESTS = 8 };

static atomic_bool is_over;

static void push(const char *who, long n)
{
    char name[96];
    snprintf(name, sizeof name, "%s %ld, one of all those that are served in the days of a server", who, n);
    nvtxRangePushA(name);
    nvtxRangePop();
}

static void *serve(void *unused)
{
    for (long n = 0; !is_over; n++) {
        push("served", n);
        usleep(200);
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    long steps = atol(argv[1]), pause = atol(argv[2]);
    nvtxDomainHandle_t engine = nvtxDomainCreateA("engine");
    nvtxEventAttributes_t batch = registered(nvtxDomainRegisterStringA(engine, "batch"));
    use_cuda();
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        return 3;
    for (long n = 0; steps == 0 || n < steps; n++) {
        launch();
        nvtxDomainRangePushEx(engine, &batch);
        for (int i = 0; i < REQUESTS; i++)
            push("request", n * REQUESTS + i);
        nvtxDomainRangePop(engine);
        if (pause > 0)
            usleep((useconds_t)pause);
    }
    is_over = true;
    pthread_join(thread, NULL);
    return 7;
}
