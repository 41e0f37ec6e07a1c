/* host ACTION...: a program that takes the given actions one after the other.
 *   steps=N     makes N steps; the first one begins to use CUDA
 *   filter=HOW  installs a seccomp filter that ends the process for each system call that the rest of this program does
 *               not make. HOW is the way: prctl, syscall or tsync. `open` is a filter that forbids nothing, `ask` only
 *               asks if the kernel supports filters, and `vfork` installs one in a vfork child
 *   strict      seccomp's strict mode, which leaves only read, write and exit to this thread
 *   mark=N      makes a system call that marks a point for a tracer
 *   end=HOW     return, exit, _exit, quick, signal or thread
 * At the end, when other libraries' destructors run, it prints the number of the library's threads, unless a filter
 * is installed. */
#include "program.h"

#include "loop.h"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct loop loop;
static int step, has_filter;

static const int ALLOWED[] = {
    __NR_write,        __NR_futex, __NR_clock_nanosleep, __NR_exit,   __NR_exit_group,
    __NR_rt_sigreturn, __NR_mmap,  __NR_brk,             __NR_fstat,  __NR_rt_sigprocmask,
    __NR_tgkill,       __NR_gettid, __NR_getpid,         __NR_newfstatat,
};
enum { COUNT = sizeof ALLOWED / sizeof *ALLOWED };

static int is(const char *text, const char *other)
{
    return strcmp(text, other) == 0;
}

static void filter(const char *how)
{
    struct sock_filter code[COUNT + 3];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        code[1 + i] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ALLOWED[i], (unsigned char)(COUNT - i), 0);
    code[COUNT + 1] =
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, is(how, "open") ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS);
    code[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = COUNT + 3, .filter = code};
    if (is(how, "ask")) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) != -1 || errno != EFAULT)
            exit(77);
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) != -1 || errno != EINVAL)
            exit(77);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) != -1 || errno != EFAULT)
            exit(77);
        return;
    }
    if (is(how, "vfork")) {
        pid_t child = vfork();
        if (child == 0) {
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            int failed = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
            syscall(SYS_exit, failed == 0 ? 0 : 77);
        }
        if (wait_for(child) != 0)
            exit(77);
        return;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        exit(77);
    errno = 77;
    long failed = is(how, "prctl") ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)
                                   : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                             is(how, "tsync") ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program);
    if (failed != 0)
        exit(77);
    if (errno != 77)
        printf("errno became %d\n", errno);
    has_filter = !is(how, "open");
}

static int own_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        count += fgets(name, sizeof name, file) != NULL && strncmp(name, "tllmprof", 8) == 0;
        fclose(file);
    }
    closedir(tasks);
    return count;
}

/* Runs after all other destructors. By then, other libraries have freed their resources. */
__attribute__((destructor(101))) static void last(void)
{
    if (!has_filter) {
        printf("%d threads of the library's at the end\n", own_threads());
        fflush(stdout);
    }
}

static void finish(const char *how)
{
    if (step > 0)
        printf("%d steps, result %016lx\n", step, (unsigned long)loop.out);
    fflush(stdout);
    if (is(how, "exit"))
        exit(3);
    if (is(how, "_exit"))
        _exit(3);
    if (is(how, "quick"))
        quick_exit(3);
    if (is(how, "signal"))
        raise(SIGKILL);
    if (is(how, "thread"))
        pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    program_begin();
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        int number = value != NULL ? atoi(++value) : 0;
        if (strncmp(argv[i], "steps=", 6) == 0) {
            struct loop_options options = loop_defaults();
            if (step == 0)
                loop_open(&loop, &options);
            for (int n = 0; n < number; n++)
                loop_step(&loop, step++);
        } else if (strncmp(argv[i], "filter=", 7) == 0) {
            filter(value);
        } else if (is(argv[i], "strict")) {
            fflush(stdout);
            has_filter = 1;
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) != 0)
                syscall(SYS_exit, 77);
            if (write(1, "strict\n", 7) != 7)
                return 4;
            syscall(SYS_exit, 0);
        } else if (strncmp(argv[i], "mark=", 5) == 0) {
            syscall(SYS_getpriority, 0x746c, number);
        } else if (strncmp(argv[i], "end=", 4) == 0) {
            finish(value);
        }
    }
    return 3;
}
