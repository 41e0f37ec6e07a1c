/* exit_in_malloc MICROSECONDS: makes 8 steps. After MICROSECONDS of processor time, a signal
 * ends the process by _exit(9), most likely in the middle of malloc. */
#include "hostile.h"

#include <sys/time.h>

static struct loop loop;

static void on_signal(int signal)
{
    (void)signal;
    _exit(9);
}

/* A second thread, which does nothing: malloc takes its locks only if the process has two
 * threads. */
static void *rest(void *argument)
{
    pause();
    return argument;
}

int main(int argc, char **argv)
{
    hostile_begin();
    start_thread(rest, NULL);
    open_default(&loop);
    make_steps(&loop, 8);
    signal(SIGVTALRM, on_signal);
    struct itimerval timer = {.it_value = {0, argc > 1 ? atoi(argv[1]) : 1000}};
    setitimer(ITIMER_VIRTUAL, &timer, NULL);
    static void *volatile blocks[64];
    for (unsigned random = 1;;) {
        random = random * 1103515245 + 12345;
        unsigned i = (random >> 16) & 63;
        free(blocks[i]);
        blocks[i] = malloc(2000 + ((random >> 8) % 60000));
    }
}
