/* An example that suffers from a checkpoint: each step writes it to the disk and waits until it is there.
 *
 *   cc -O2 disk_sync.c -o disk_sync -ldl
 *   tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- ./disk_sync 80    # 80 steps
 */
#include "gpu.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 30, KERNEL_NS = 5000000, BYTES = 1 << 20 };

static char state_of_requests[BYTES];

__attribute__((noinline)) static int write_checkpoint(int file)
{
    return pwrite(file, state_of_requests, BYTES, 0) != BYTES || fsync(file) != 0;
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    char path[] = "checkpoint-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || unlink(path) != 0)
        return 1;
    gpu_start(0);
    for (int step = 0; step < steps; step++) {
        if (write_checkpoint(file))
            return 1;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
