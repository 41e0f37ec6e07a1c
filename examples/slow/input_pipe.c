/* An example that suffers from a child process that makes batches too slowly: each step reads the next batch from a pipe.
 *
 *   cc -O2 input_pipe.c -o input_pipe -ldl -lpthread
 *   tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- ./input_pipe 80    # 80 steps
 */
#include "gpu.h"

#include <stdio.h>

enum { STEPS = 30, KERNEL_NS = 3000000 };

/* Each line stands for a batch that takes the shell some 10 ms to make. */
static const char MAKES_BATCHES[] = "while :; do n=0; while [ $n -lt 8000 ]; do n=$((n + 1)); done; echo $n; done";

__attribute__((noinline)) static int take_batch(FILE *batches)
{
    char line[32];
    return fgets(line, sizeof line, batches) == NULL ? -1 : atoi(line);
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    FILE *batches = popen(MAKES_BATCHES, "r");
    if (batches == NULL)
        return 1;
    gpu_start(0);
    for (int step = 0; step < steps; step++) {
        if (take_batch(batches) < 0)
            return 1;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
    exit(0); /* without pclose, which would wait for the shell: it ends by SIGPIPE */
}
