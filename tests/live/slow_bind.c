/* Preloaded: bind(2) of a Unix socket takes 0.3 s more, in which the program ends. $SLOW_BIND is a file that gets a line for
 * each. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int bind(int socket, const struct sockaddr *address, socklen_t length)
{
    const char *path = getenv("SLOW_BIND");
    const int result = (int)syscall(SYS_bind, socket, address, length);
    if (address->sa_family == AF_UNIX && path != NULL) {
        int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (write(file, "binds\n", 6) != 6)
            abort();
        close(file);
        const struct timespec while_it_ends = {0, 300000000};
        nanosleep(&while_it_ends, NULL);
    }
    return result;
}
