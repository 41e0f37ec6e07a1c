/* cancelled exits|looks-up: a thread requests its own cancellation, and then ends the process by
 * _exit. With `looks-up`, it calls dlsym in between. Neither function is a cancellation point,
 * so the thread must not be cancelled there. */
#include "hostile.h"

static struct loop loop;

static void *exit_now(void *argument)
{
    gpu_use();
    pthread_cancel(pthread_self());
    _exit(4);
    return argument;
}

static void *look_up_and_exit(void *driver)
{
    pthread_cancel(pthread_self());
    void *found = dlsym(driver, "cuGraphLaunch");
    _exit(found != NULL ? 4 : 5);
}

int main(int argc, char **argv)
{
    static const char *const WHATS[] = {"exits", "looks-up", NULL};
    hostile_begin();
    if (argc != 2)
        return 2;
    if (choose("WHAT", argv[1], WHATS) == 0) {
        open_default(&loop);
        make_steps(&loop, 8);
        pthread_join(start_thread(exit_now, NULL), NULL);
    } else {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        pthread_join(start_thread(look_up_and_exit, driver), NULL);
    }
    puts("the thread was cancelled");
    return 0;
}
