// The program that the tests in `duties.rs` start directly and with `tllmprof run`. It prints a part of the environment
// in which it runs, or reacts to signals.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

extern char **environ;

static void signals(const char *prefix) {
    FILE *file = fopen("/proc/self/status", "r");
    for (char line[256]; fgets(line, sizeof line, file);) {
        if (strncmp(line, prefix, strlen(prefix))) continue;
        unsigned long long mask = strtoull(line + strlen(prefix) + 1, NULL, 16);
        printf("%s", prefix);
        for (int number = 1; number < 32; number++)
            if (mask >> (number - 1) & 1) printf(" %d", number);
        puts(".");
    }
    fclose(file);
}

static void descriptors(void) {
    for (int fd = 0; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags != -1) printf("%d flags %d\n", fd, flags);
    }
}

static void limits(void) {
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        getrlimit(resource, &limit);
        printf("limit %d %llu %llu\n", resource, (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
    }
    mode_t mask = umask(0);
    printf("umask %o nice %d policy %d\n", mask, getpriority(PRIO_PROCESS, 0), sched_getscheduler(0));
    char oom[32] = "";
    FILE *file = fopen("/proc/self/oom_score_adj", "r");
    if (!fgets(oom, sizeof oom, file)) return;
    fclose(file);
    int reaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    printf("oom %s reaper %d slack %d privileges %d\n", oom, reaper, prctl(PR_GET_TIMERSLACK), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

static int is_ours(const char *variable) { return !strncmp(variable, "TLLM", 4) || !strncmp(variable, "LD_", 3); }

static void variables(void) {
    for (char **at = environ; *at; at++)
        if (!is_ours(*at)) puts(*at);
}

static int is_own(const char *name) {
    const char *value = getenv(name);
    return value && atoi(value) == getpid();
}

static void manager(void) {
    printf("%d %d %d %s\n", is_own("LISTEN_PID"), is_own("WATCHDOG_PID"), is_own("SYSTEMD_EXEC_PID"), getenv("LISTEN_FDS"));
}

static void timer(void) {
    struct itimerval left;
    getitimer(ITIMER_REAL, &left);
    printf("timer %s\n", left.it_value.tv_sec || left.it_value.tv_usec ? "runs" : "stopped");
    fflush(stdout);
    alarm(0);
}

static void note(int number, siginfo_t *info, void *context) {
    (void)context;
    char line[64];
    int length = number == SIGRTMIN + 3 ? snprintf(line, sizeof line, "got value %d from %d\n", info->si_value.sival_int, info->si_pid > 0)
                                        : snprintf(line, sizeof line, "got %d\n", number);
    if (write(1, line, length) != length) _exit(3);
    if (number == SIGUSR2) _exit(0);
}

// Prints the signals that the program receives, until SIGUSR2 ends it.
static void listen_to_signals(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGRTMIN + 2, SIGRTMIN + 3};
    sigfillset(&action.sa_mask);
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &action, NULL);
    printf("pid %d\n", getpid());
    fflush(stdout);
    for (;;) pause();
}

// Replaces this process by another program, with one of four sets of variables added to the
// environment.
static int become(const char *kind, char **arguments) {
    static char own[4][64];
    char *odd[] = {"ZZ=1", "AA=2", "ZZ=3", "strange", "BAD=\xff\xfe", NULL};
    char *service[] = {own[0], own[1], own[2], "LISTEN_FDS=1", "LISTEN_PIDFDID=5", NULL};
    char *other[] = {"LISTEN_PID=1", "WATCHDOG_PID=1", "LISTEN_FDS=1", "LISTEN_PIDFDID=5", NULL};
    char *group[] = {own[3], NULL};
    sprintf(own[0], "LISTEN_PID=%d", getpid());
    sprintf(own[1], "WATCHDOG_PID=%d", getpid());
    sprintf(own[2], "SYSTEMD_EXEC_PID=%d", getpid());
    sprintf(own[3], "GROUP=%d", getpgrp());
    char **more = !strcmp(kind, "odd") ? odd : !strcmp(kind, "service") ? service : !strcmp(kind, "other") ? other : group;
    static char *all[1000];
    int length = 0;
    for (char **at = environ; *at; at++) all[length++] = *at;
    for (; *more; more++) all[length++] = *more;
    execve(arguments[0], arguments, all);
    return 99;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "become")) return become(arguments[2], arguments + 3);
    if (!strcmp(what, "signals")) signals("SigBlk"), signals("SigIgn");
    if (!strcmp(what, "descriptors")) descriptors();
    if (!strcmp(what, "limits")) limits();
    if (!strcmp(what, "variables")) variables();
    if (!strcmp(what, "manager")) manager();
    if (!strcmp(what, "timer")) timer();
    if (!strcmp(what, "arguments"))
        for (int i = 0; i < count; i++) puts(arguments[i]);
    if (!strcmp(what, "group")) printf("%d %d\n", getpgrp() == atoi(getenv("GROUP")), getsid(0) == getpgrp());
    if (!strcmp(what, "own-group")) setpgid(0, 0), listen_to_signals();
    if (!strcmp(what, "listen")) listen_to_signals();
    if (!strcmp(what, "closes")) {
        puts("ready");
        fflush(stdout);
        close(0), close(1), close(3);
        for (;;) pause();
    }
    if (!strcmp(what, "end")) {
        int number = atoi(arguments[2]);
        if (number < 0) signal(-number, SIG_DFL), raise(-number);
        return number;
    }
    return 0;
}
