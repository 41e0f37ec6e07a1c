/* An example that suffers from a child process: each step runs a command with `system`, and waits for its end.
 *
 *   cc -O2 child_process.c -o child_process -ldl
 *   tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- ./child_process 80    # 80 steps
 */
#include "gpu.h"

enum { STEPS = 30, KERNEL_NS = 5000000 };

__attribute__((noinline)) static int convert_image(void)
{
    int status = system("sleep 0.02");
    return status == 0 ? 0 : 1;
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    gpu_start(0);
    for (int step = 0; step < steps; step++) {
        if (convert_image() != 0)
            return 1;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
