/* fitted PROGRAM: runs PROGRAM under a seccomp filter that kills it for any system call that
 * neither the loader nor PROGRAM itself makes. Without an argument, this file is PROGRAM. */
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int ALLOWED[] = {
    /* system calls of PROGRAM itself */
    __NR_execve, __NR_write, __NR_dup3, __NR_exit_group,
    /* system calls of the loader */
    __NR_brk, __NR_close, __NR_faccessat, __NR_fstat, __NR_mmap, __NR_mprotect, __NR_munmap,
    __NR_newfstatat, __NR_openat, __NR_pread64, __NR_prlimit64, __NR_read, __NR_set_robust_list,
    __NR_set_tid_address,
#ifdef __NR_rseq
    __NR_rseq,
#endif
#ifdef __NR_access
    __NR_access,
#endif
#ifdef __NR_arch_prctl
    __NR_arch_prctl,
#endif
#ifdef __NR_dup2
    __NR_dup2,
#endif
};
enum { COUNT = sizeof ALLOWED / sizeof *ALLOWED };

static int filter(void)
{
    struct sock_filter code[COUNT + 3];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        code[1 + i] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ALLOWED[i], COUNT - i, 0);
    code[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = COUNT + 3, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        if (argc > 2 && setenv("LD_PRELOAD", argv[2], 1) != 0)
            return 2;
        if (!filter())
            return 77;
        execv(argv[1], (char *[]){argv[1], NULL});
        return 2;
    }
    /* These calls go through the library's hooks of dup2 and dup3. The filter kills the process
     * if a hook makes any other system call. */
    if (dup2(1, 2) != 2 || dup3(1, 3, 0) != 3)
        return 2;
    if (write(2, "done\n", 5) != 5)
        return 2;
    _exit(6);
}
