/* Makes steps while standard error is a full pipe that nothing reads. */
#include "hostile.h"

#include <fcntl.h>

static struct loop loop;

static void fill(int pipe)
{
    static const char filler[4096];
    fcntl(pipe, F_SETFL, O_NONBLOCK);
    while (write(pipe, filler, sizeof filler) > 0)
        ;
    while (write(pipe, filler, 1) > 0)
        ;
    fcntl(pipe, F_SETFL, 0);
}

int main(int argc, char **argv)
{
    hostile_begin();
    if (argc == 1) {
        int ends[2];
        if (pipe(ends) != 0)
            return 3;
        fill(ends[1]);
        dup2(ends[1], STDERR_FILENO);
        execl("/proc/self/exe", argv[0], "again", NULL);
        return 3;
    }
    open_default(&loop);
    make_steps(&loop, 8);
    print_result(&loop);
    return 0;
}
