/* An example that suffers from a log: each step writes a line to it and waits until the line is on the disk. A child
 * process plays the slow disk.
 *
 *   cc -O2 disk_writes.c -o disk_writes -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./disk_writes
 */
#include "gpu.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 30, KERNEL_NS = 5000000, WRITES_NS = 6000000 };

/* Reads lines from the pipe like a slow disk, and confirms each line through the other pipe when it is written. */
static void write_log(int lines, int confirmed)
{
    char line;
    while (read(lines, &line, 1) == 1) {
        struct timespec time = {0, WRITES_NS};
        nanosleep(&time, NULL);
        if (write(confirmed, &line, 1) != 1)
            break;
    }
}

int main(void)
{
    int lines[2], confirmed[2];
    if (pipe(lines) != 0 || pipe(confirmed) != 0)
        return 1;
    pid_t writer = fork();
    if (writer == 0) {
        close(lines[1]);
        write_log(lines[0], confirmed[1]);
        _exit(0);
    }
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        char line = '.';
        if (write(lines[1], &line, 1) != 1 || read(confirmed[0], &line, 1) != 1)
            return 1;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
    close(lines[1]);
    waitpid(writer, NULL, 0);
}
