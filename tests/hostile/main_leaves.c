/* The main thread makes 10 steps and ends by pthread_exit. Another thread makes 30 more steps. */
#include "hostile.h"

static struct loop loop;
static pthread_t main_thread;

static void *go_on(void *argument)
{
    gpu_use();
    pthread_join(main_thread, NULL);
    make_steps(&loop, 30);
    print_result(&loop);
    return argument;
}

int main(void)
{
    hostile_begin();
    main_thread = pthread_self();
    open_default(&loop);
    make_steps(&loop, 10);
    start_thread(go_on, NULL);
    pthread_exit(NULL);
}
