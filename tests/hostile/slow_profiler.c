/* In this program, cuProfilerStart returns only after another thread has made 200 launches. */
#include "hostile.h"

static struct loop loop, others;
static atomic_bool asked, made;

static void *make_others(void *argument)
{
    gpu_use();
    while (!atomic_load(&asked))
        usleep(100);
    make_steps(&others, 200);
    atomic_store(&made, true);
    return argument;
}

static void on_call(const char *function)
{
    if (strcmp(function, "cuProfilerStart") != 0)
        return;
    atomic_store(&asked, true);
    while (!atomic_load(&made))
        usleep(100);
}

int main(void)
{
    hostile_begin();
    open_default(&loop);
    open_default(&others);
    pthread_t thread = start_thread(make_others, NULL);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    ((void (*)(void (*)(const char *)))find(driver, "standin_set_callback"))(on_call);
    make_steps(&loop, 40);
    /* If no window opened, cuProfilerStart was not called, and the other thread still waits. It
     * makes its launches now. */
    atomic_store(&asked, true);
    pthread_join(thread, NULL);
    print_result(&loop);
    print_result(&others);
    return 0;
}
