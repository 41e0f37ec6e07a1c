/* Starts a program in a process that may not make writable memory executable, like with systemd's
 * MemoryDenyWriteExecute=yes. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **words)
{
    (void)count;
    if (prctl(65, 1, 0, 0, 0) != 0)
        return 77; /* the kernel is too old */
    execv(words[1], words + 1);
    perror(words[1]);
    return 9;
}
