/* An example that suffers from one slow rank: three ranks do the same, but rank 1 has more work on its host. If the
 * ranks waited for each other (an all-reduce in each layer), all would be as slow as rank 1. Ranks that share a GPU
 * delay each other by a few milliseconds, so the kernels are long.
 *
 *   cc -O2 slow_rank.c -o slow_rank -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./slow_rank    # or `./slow_rank 2`: a rank and its peer
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
