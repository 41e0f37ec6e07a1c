/* census FILE PROGRAM ARGUMENT...: runs a program with ptrace and writes a line for each of its processes and
 * threads: the descriptors that a process had open at its end, and the names of its threads. A thread that starts
 * another one is delayed a little, so that the new thread has set its name even if the process ends at once. Exits
 * with the program's status. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *out;

static int status_number(pid_t tid, const char *name)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)tid);
    FILE *file = fopen(path, "re");
    int number = -1;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            number = atoi(line + strlen(name));
    if (file)
        fclose(file);
    return number;
}

static void name_of(pid_t tid, char name[64])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)tid);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(name, 64, file))
        strcpy(name, "?");
    name[strcspn(name, "\n")] = 0;
    if (file)
        fclose(file);
}

/* Writes each descriptor's number and target, without the inode number of a pipe or similar. */
static void descriptors(pid_t pid)
{
    char path[64], target[512];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.')
            continue;
        ssize_t size = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        target[size > 0 ? size : 0] = 0;
        char *bracket = strchr(target, '[');
        if (bracket && target[0] != '/' && strncmp(target, "anon_inode:", 11) != 0)
            *bracket = 0;
        fprintf(out, " %s=%s", entry->d_name, target);
    }
    if (folder)
        closedir(folder);
}

static void ends(pid_t tid)
{
    char name[64];
    name_of(tid, name);
    if (status_number(tid, "Tgid:") != tid) {
        fprintf(out, "thread %s\n", name);
        return;
    }
    fprintf(out, "process %s:", name);
    descriptors(tid);
    fprintf(out, "\n");
}

static void stopped(pid_t tid, int status)
{
    int signal = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_CLONE) {
        unsigned long started;
        int its_status;
        char starts[64], name[64];
        name_of(tid, starts);
        if (ptrace(PTRACE_GETEVENTMSG, tid, 0, &started) == 0)
            for (int look = 0; look < 60; look++) {
                if (waitpid((pid_t)started, &its_status, __WALL | WNOHANG) > 0 && WIFSTOPPED(its_status))
                    stopped((pid_t)started, its_status);
                name_of((pid_t)started, name);
                if (strcmp(name, starts) != 0)
                    break;
                usleep(300);
            }
    }
    if (event == PTRACE_EVENT_EXIT)
        ends(tid);
    if (event == PTRACE_EVENT_STOP && signal != SIGTRAP)
        ptrace(PTRACE_LISTEN, tid, 0, 0);
    else
        ptrace(PTRACE_CONT, tid, 0, event ? 0 : (long)signal);
}

int main(int argc, char **argv)
{
    int ready[2];
    if (argc < 3 || !(out = fopen(argv[1], "we")) || pipe2(ready, O_CLOEXEC) != 0)
        return 125;
    pid_t first = fork();
    if (first == 0) {
        char go;
        if (read(ready[0], &go, 1) != 1)
            _exit(125);
        execvp(argv[2], argv + 2);
        _exit(errno == ENOENT ? 127 : 126);
    }
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC |
                   PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, first, 0, options) != 0) {
        kill(first, SIGKILL);
        return 125;
    }
    if (write(ready[1], "", 1) != 1)
        return 125;
    close(ready[0]);
    close(ready[1]);
    int status, last = 125 << 8;
    pid_t tid;
    while ((tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (tid <= 0)
            continue;
        if (!WIFSTOPPED(status)) {
            if (tid == first)
                last = status;
            continue;
        }
        stopped(tid, status);
    }
    fclose(out);
    if (WIFEXITED(last))
        return WEXITSTATUS(last);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(last), SIG_DFL);
    raise(WTERMSIG(last));
    return 128 + WTERMSIG(last);
}
