/* contain ROOT HOW NUMBER PROGRAM [ARGUMENT]...: runs a program in its own mount and process namespaces, like a
 * container runtime does. ROOT is its root file system, and it runs in /tmp there. Writes the program's process
 * number outside the container into the file NUMBER. Exits with the program's status, or with 77 if the kernel
 * refuses to create a namespace. Each letter of HOW changes something:
 * u: also a user namespace, whose root is user 100000 outside
 * n: /proc is not mounted
 * r: the root file system is read-only, except for /dev/shm
 * R: the root file system and /dev/shm are read-only
 * d: /dev is in memory, with only /dev/null in it
 * x: files in memory cannot be executable (vm.memfd_noexec)
 * s: a system call filter like a container runtime's: calls that it forbids fail
 * k: the same filter, but calls that it forbids end the process */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void need(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "contain: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* Checks the result of an operation, like need(). If the operation failed because the kernel
 * does not allow it, the process exits with 77. */
static void permitted(int holds, const char *what)
{
    if (!holds && (errno == EPERM || errno == ENOSYS || errno == ENOSPC || errno == EINVAL)) {
        fprintf(stderr, "contain: %s: %s\n", what, strerror(errno));
        _exit(77);
    }
    need(holds, what);
}

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    need(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(file);
}

static int end_of(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static pid_t forked(void)
{
    pid_t pid = fork();
    need(pid >= 0, "fork");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void filter_calls(unsigned otherwise)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kexec_load, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
}

/* Enters the container. The current folder of this process is ROOT. */
static void enter(const char *root, const char *how)
{
    permitted(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private mounts");
    need(mount(".", ".", NULL, MS_BIND | MS_REC, NULL) == 0, root);
    /* The new mount now covers this folder. The folder's absolute path may lead through folders that the
     * container's user may not enter, so the folder is entered by its name in the parent folder. */
    char above[256];
    const char *name = strrchr(root, '/');
    snprintf(above, sizeof above, "../%s", name == NULL ? root : name + 1);
    need(chdir(above) == 0, above);
    if (strpbrk(how, "rR") != NULL)
        need(mount("shm", "dev/shm", "tmpfs", 0, "mode=1777") == 0, "dev/shm");
    if (strchr(how, 'd') != NULL)
        need(mount("dev", "dev", "tmpfs", 0, NULL) == 0 && mknod("dev/null", S_IFCHR | 0666, makedev(1, 3)) == 0, "dev");
    if (strchr(how, 'n') == NULL)
        permitted(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "proc");
    if (strchr(how, 'x') != NULL)
        put("proc/sys/vm/memfd_noexec", "2");
    need(syscall(SYS_pivot_root, ".", ".") == 0, "pivot_root");
    need(umount2(".", MNT_DETACH) == 0, "the old root");
    if (strpbrk(how, "rR") != NULL)
        need(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0, "read-only");
    if (strchr(how, 'R') != NULL)
        need(mount(NULL, "/dev/shm", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0, "read-only");
    need(chdir("/tmp") == 0, "/tmp");
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    const char *root = argv[1], *how = argv[2], *number = argv[3];
    int is_user = strchr(how, 'u') != NULL, begun[2], mapped[2];
    need(pipe(begun) == 0 && pipe(mapped) == 0, "pipe");
    int file = open(number, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    need(file >= 0, number);
    need(chdir(root) == 0, root);
    pid_t child = forked();
    if (child != 0) {
        char byte, path[64];
        close(begun[1]);
        if (is_user && read(begun[0], &byte, 1) == 1) {
            snprintf(path, sizeof path, "/proc/%d/uid_map", (int)child);
            put(path, "0 100000 65536\n");
            snprintf(path, sizeof path, "/proc/%d/gid_map", (int)child);
            put(path, "0 100000 65536\n");
        }
        need(write(mapped[1], "", 1) == 1, "pipe");
        return end_of(child);
    }
    permitted(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | (is_user ? CLONE_NEWUSER : 0)) == 0, "namespaces");
    char byte;
    need(write(begun[1], "", 1) == 1 && read(mapped[0], &byte, 1) == 1, "pipe");
    if (is_user)
        need(setgroups(0, NULL) == 0 && setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0, "users");
    need(sethostname("inside", 6) == 0, "name");
    int go[2];
    need(pipe(go) == 0, "pipe");
    pid_t program = forked();
    if (program == 0) {
        need(read(go[0], &byte, 1) == 1, "pipe");
        enter(root, how);
        if (strpbrk(how, "sk") != NULL)
            filter_calls(strchr(how, 'k') != NULL ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM);
        for (int descriptor = 3; descriptor < 64; descriptor++)
            close(descriptor);
        execv(argv[4], argv + 4);
        need(0, argv[4]);
    }
    char text[32];
    snprintf(text, sizeof text, "%d\n", (int)program);
    need(write(file, text, strlen(text)) > 0, number);
    need(write(go[1], "", 1) == 1, "pipe");
    return end_of(program);
}
