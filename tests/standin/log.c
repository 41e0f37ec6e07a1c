/* The stand-in's log: one line per call, and one write(2) per line. The log's descriptor must not collide with
 * the program's descriptors, nor with 0 to 2, which the program may have closed. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOWEST_DESCRIPTOR = 100 };

static int descriptor = -1;
static unsigned long sequence;
static __thread const char *via = "-";

/* Sets the name of the runtime that the calling thread is in, and returns the previous name. The names are copies,
 * because the runtime may be unloaded. */
const char *standin_via(const char *name)
{
    static const char *const known[] = {"cudart12", "cudart13", "cudart_static", "-"};
    const char *before = via;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], name) == 0)
            via = known[i];
    return before;
}

static int open_log(void)
{
    const char *path = getenv("STANDIN_LOG");
    if (path == NULL || *path == '\0')
        return -1;
    int low = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (low < 0)
        return -1;
    int high = fcntl(low, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR);
    close(low);
    return high;
}

void log_call(const char *mark, const char *function, const char *suffix, const void *first)
{
    int saved_errno = errno;
    if (descriptor < 0)
        descriptor = open_log();
    if (descriptor >= 0) {
        char line[256];
        int length = snprintf(line, sizeof line, "%lu %d %ld %s%s%s%s 0x%lx via=%s\n", sequence++,
                              getpid(), syscall(SYS_gettid), mark, *mark ? " " : "", function,
                              suffix, (unsigned long)first, via);
        if (write(descriptor, line, (size_t)length) < 0 && errno == EBADF) {
            /* The write failed because the program has closed all descriptors, including the log's. */
            descriptor = open_log();
            if (descriptor >= 0 && write(descriptor, line, (size_t)length) < 0)
                descriptor = -1;
        }
    }
    errno = saved_errno;
}

/* In a forked child, starts the numbers of lines at 0 again and opens a new descriptor. */
void log_forget(void)
{
    if (descriptor >= 0)
        close(descriptor);
    descriptor = -1;
    sequence = 0;
}
