/* A preload that makes listen(2) take 0.3 s longer. The program ends during that time, when the socket's file
 * already exists. A seccomp filter catches the call, because the library makes the system call without libc.
 * $SLOW_LISTEN is a file that gets a line for each call. Without the variable, nothing is changed. The exit status
 * is 77 if the kernel has no such filters. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *path;
static int listener;

static void *hold_up(void *unused)
{
    struct seccomp_notif call;
    const struct timespec while_it_ends = {0, 300000000};
    for (;;) {
        memset(&call, 0, sizeof call);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
            if (errno == EINTR || errno == ENOENT)
                continue;
            return unused;
        }
        int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (write(file, "listens\n", 8) != 8)
            abort();
        close(file);
        nanosleep(&while_it_ends, NULL);
        struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

__attribute__((constructor)) static void begin(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_listen, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    pthread_t thread;
    path = getenv("SLOW_LISTEN");
    if (path == NULL)
        return;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        _exit(77);
    listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0 || pthread_create(&thread, NULL, hold_up, NULL) != 0)
        _exit(77);
}
