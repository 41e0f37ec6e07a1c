/* fit kill|refuse N,N,... PROGRAM ARGUMENT...: runs a program under a seccomp filter that allows only these system
 * calls. Any other call kills the program, or fails with EPERM. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static struct sock_filter code[600];
    if (argc < 4)
        return 125;
    int size = 0, count = 1;
    for (const char *at = argv[2]; (at = strchr(at, ',')); at++)
        count++;
    unsigned other = strcmp(argv[1], "kill") == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    if (count > 250)
        return 125;
    code[size++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    char *at = argv[2];
    for (int i = 0; i < count; i++) {
        unsigned number = strtoul(at, &at, 10);
        at++;
        code[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, count - i, 0);
    }
    code[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
    code[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = size, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 125;
    execvp(argv[3], argv + 3);
    return errno == ENOENT ? 127 : 126;
}
