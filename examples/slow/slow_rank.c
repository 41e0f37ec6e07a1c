/* An example that suffers from one slow rank: three ranks make the same steps, but rank 1 has additional work on the
 * host in each step. These ranks do not wait for each other. Ranks of a real program do, for example in all-reduces,
 * and would all be as slow as rank 1. Ranks that share a GPU delay each other by a few milliseconds, so the kernels are
 * long.
 *
 *   cc -O2 slow_rank.c -o slow_rank -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./slow_rank    # `./slow_rank 2` runs only ranks 0 and 1
 */
#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 30, SLOW = 1, KERNEL_NS = 20000000, MORE_NS = 12000000 };

static void run(int rank)
{
    char number[16];
    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    gpu_start(rank);
    for (int step = 0; step < STEPS; step++) {
        if (rank == SLOW)
            host_works(MORE_NS);
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}

int main(int count, char **words)
{
    int ranks = count > 1 ? atoi(words[1]) : 3;
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0) {
            run(rank);
            return 0;
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
