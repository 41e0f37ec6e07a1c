/* exit_handlers alone|thread: makes 40 steps. Then an exit handler that was registered before
 * any CUDA call makes 1000 more steps, itself or through a thread that still runs. */
#include "hostile.h"

static struct loop loop;
static bool by_thread;
static atomic_bool asked, made;

static void *make_more(void *argument)
{
    gpu_use();
    while (!atomic_load(&asked))
        usleep(100);
    make_steps(&loop, 1000);
    atomic_store(&made, true);
    return argument;
}

static void at_exit(void)
{
    if (by_thread) {
        atomic_store(&asked, true);
        while (!atomic_load(&made))
            usleep(100);
    } else {
        make_steps(&loop, 1000);
    }
    print_result(&loop);
}

int main(int argc, char **argv)
{
    hostile_begin();
    by_thread = argc > 1 && strcmp(argv[1], "thread") == 0;
    atexit(at_exit);
    open_default(&loop);
    if (by_thread)
        start_thread(make_more, NULL);
    make_steps(&loop, 40);
    return 6;
}
