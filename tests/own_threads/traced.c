/* traced PROGRAM ARGUMENT...: runs a program under ptrace, and prints the system calls that the library's threads
 * make in it.
 *
 * The program marks the start and the end of a span by calls of getpriority(0x746c, N), with N = 1 and 2. At the
 * first mark, the program is held until the library has exactly TRACED_THREADS threads and each is in a system call
 * without a time limit. (A sampling thread may still be about to end.)
 *
 * Output: `made THREAD NUMBER` for each system call, also `between THREAD NUMBER` if the call was entered within the
 * span, and `held N`, the number of threads that the program waited for. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MARK = 0x746c, MOST_THREADS = 64 };

struct thread {
    pid_t number;
    char name[32];
    /* True while the thread is in a system call that waits without a time limit. */
    int sleeps;
};
static struct thread threads[MOST_THREADS];
static int in_span;
/* The thread of the program that is held at the first mark, or 0 if none is held. */
static pid_t held;

static struct thread *find(pid_t number)
{
    for (int i = 0; i < MOST_THREADS; i++)
        if (threads[i].number == number)
            return &threads[i];
    for (int i = 0; i < MOST_THREADS; i++)
        if (threads[i].number == 0) {
            threads[i] = (struct thread){.number = number};
            return &threads[i];
        }
    abort();
}

static void read_name(struct thread *thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", thread->number);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    if (fgets(thread->name, sizeof thread->name, file) != NULL)
        thread->name[strcspn(thread->name, "\n")] = '\0';
    fclose(file);
}

static int is_own(const struct thread *thread)
{
    return strncmp(thread->name, "tllmprof", 8) == 0;
}

static void note(const char *what, const struct thread *thread, unsigned long number)
{
    printf("%s %s %lu\n", what, thread->name, number);
}

static void enters(struct thread *thread, const struct __ptrace_syscall_info *info)
{
    unsigned long number = info->entry.nr;
    const uint64_t *arguments = info->entry.args;
    read_name(thread);
    if (number == SYS_getpriority && arguments[0] == MARK) {
        if (arguments[1] == 1)
            held = thread->number;
        else
            in_span = 0;
        return;
    }
    if (!is_own(thread))
        return;
    note("made", thread, number);
    if (in_span)
        note("between", thread, number);
    int is_wait = number == SYS_futex && (arguments[1] & 0x7f) == 0;
    int is_poll = 0;
#ifdef SYS_poll
    is_poll = number == SYS_poll && (int)arguments[2] < 0;
#endif
    is_poll |= number == SYS_ppoll && arguments[2] == 0;
    thread->sleeps = (is_wait && arguments[3] == 0) || is_poll;
}

/* Lets the thread that is held at the first mark continue, if all of the library's threads sleep. */
static void look_at_held(void)
{
    int count = 0;
    const char *wanted = getenv("TRACED_THREADS");
    if (held == 0)
        return;
    for (int i = 0; i < MOST_THREADS; i++) {
        if (threads[i].number == 0 || !is_own(&threads[i]))
            continue;
        if (!threads[i].sleeps)
            return;
        count++;
    }
    if (wanted != NULL && count != atoi(wanted))
        return;
    printf("held %d\n", count);
    in_span = 1;
    ptrace(PTRACE_SYSCALL, held, 0, 0);
    held = 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    alarm(280);
    setvbuf(stdout, NULL, _IOLBF, 0);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        if (getenv("TRACED_PRELOAD") != NULL)
            setenv("LD_PRELOAD", getenv("TRACED_PRELOAD"), 1);
        execv(argv[1], argv + 1);
        _exit(2);
    }
    int status;
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) != 0)
        return 77;
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    for (;;) {
        pid_t number = waitpid(-1, &status, __WALL);
        if (number < 0)
            return 2;
        struct thread *thread = find(number);
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            thread->number = 0;
            thread->name[0] = '\0';
            if (number == child)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            look_at_held();
            continue;
        }
        int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            ptrace(PTRACE_GET_SYSCALL_INFO, number, sizeof info, &info);
            if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
                enters(thread, &info);
            else
                thread->sleeps = 0;
            signal = 0;
        } else if (signal == SIGTRAP || signal == SIGSTOP) {
            signal = 0;
        }
        if (held != number)
            ptrace(PTRACE_SYSCALL, number, 0, signal);
        look_at_held();
    }
}
