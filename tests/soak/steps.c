/* steps TICKETS SECONDS: 16 threads make one step per ticket: an NVTX range, a function that a `sym:` rule can name,
 * kernels, a graph launch, a copy and a wait. A thread lives for LIFE tickets and has its own stream, graph and
 * event. Then another thread takes its place. */
#include "pace.h"

#include "loop.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

enum { THREADS = 16, LIFE = 250, RELAXED = 2 };

static atomic_bool is_over[THREADS];

__attribute__((noinline)) void soak_step(struct loop *loop, int n)
{
    loop_step(loop, n);
}

static void *live(void *seat)
{
    struct loop loop;
    struct loop_options options = loop_defaults();
    options.kernels = 2;
    options.copy_out = true;
    options.capture_mode = RELAXED;
    loop_open(&loop, &options);
    for (int n = 0; n < LIFE; n++) {
        if (pace_next() < 0)
            break;
        nvtxRangePushA("step");
        soak_step(&loop, n);
        nvtxRangePop();
    }
    loop_close(&loop);
    atomic_store((atomic_bool *)seat, true);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    pace_begin(argc, argv);
    gpu_use();
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, live, &is_over[i]) != 0)
            return 3;
    for (int left = THREADS; left > 0; usleep(5000))
        for (int i = 0; i < THREADS; i++) {
            if (!atomic_exchange(&is_over[i], false))
                continue;
            pthread_join(threads[i], NULL);
            if (atomic_load(&pace.taken) >= pace.tickets)
                left--;
            else if (pthread_create(&threads[i], NULL, live, &is_over[i]) != 0)
                return 3;
        }
    return 0;
}
