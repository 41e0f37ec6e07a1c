/* A process that opens a range before and after it starts a child, which opens ranges, too.
 *
 *   children fork|preload|bare [child]
 *
 * fork: the child is a fork; preload: the child executes this program again; bare: the same without LD_PRELOAD. */
#include "loop.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void step(void)
{
    nvtxRangePushA("step");
    work();
    nvtxRangePop();
}

int main(int argc, char **argv)
{
    int is_child = argc > 2;
    use_cuda();
    for (int n = 0; n < 3; n++)
        step();
    if (is_child)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        if (strcmp(argv[1], "fork") != 0) {
            if (strcmp(argv[1], "bare") == 0)
                unsetenv("LD_PRELOAD");
            execl(argv[0], argv[0], argv[1], "child", (char *)NULL);
            _exit(127);
        }
        /* The driver cannot be used after a fork, so a forked child only opens ranges. */
        for (int n = 0; n < 2; n++) {
            nvtxRangePushA("step");
            nvtxRangePop();
        }
        return 0;
    }
    int status = -1;
    waitpid(child, &status, 0);
    step();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
