/* Prints the parts of a process's state that a preloaded library could have changed, and errno after functions that
 * libraries intercept. Numbers that differ from run to run are not printed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int in_atexit;

static void at_exit(void)
{
    printf("atexit %d\n", ++in_atexit);
    fflush(stdout);
}

static void signals(void)
{
    sigset_t mask, pending;
    stack_t stack;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    sigpending(&pending);
    for (int n = 1; n <= SIGRTMAX; n++) {
        struct sigaction action;
        if (sigaction(n, NULL, &action) == 0 && (action.sa_handler != SIG_DFL || sigismember(&mask, n) > 0 ||
                                                 sigismember(&pending, n) > 0))
            printf("signal %d: handled %d blocked %d pending %d\n", n, action.sa_handler != SIG_DFL,
                   sigismember(&mask, n), sigismember(&pending, n));
    }
    sigaltstack(NULL, &stack);
    printf("alternate stack: %d\n", stack.ss_flags != SS_DISABLE);
}

static void descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    while ((entry = readdir(folder)))
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder))
            printf("descriptor %s: flags %x\n", entry->d_name, fcntl(atoi(entry->d_name), F_GETFD));
    closedir(folder);
}

static void limits(void)
{
    for (int n = 0; n < RLIMIT_NLIMITS; n++) {
        struct rlimit limit;
        getrlimit(n, &limit);
        printf("limit %d: %llu %llu\n", n, (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
    }
}

static void status(void)
{
    static const char *const FIELDS[] = {"Name:", "Umask:", "Threads:", "SigBlk:", "SigIgn:", "SigCgt:", "NoNewPrivs:",
                                         "Seccomp:", "Cpus_allowed:", "Speculation_Store_Bypass:"};
    char line[512];
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        for (unsigned i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
            if (strncmp(line, FIELDS[i], strlen(FIELDS[i])) == 0)
                fputs(line, stdout);
    fclose(file);
}

static void *thread(void *errors)
{
    *(int *)errors = errno;
    return NULL;
}

#define ERRNO(what)                                                                                                    \
    do {                                                                                                               \
        errno = 1234;                                                                                                  \
        what;                                                                                                          \
        printf("%s: errno %d\n", #what, errno);                                                                        \
    } while (0)

static void errors(void)
{
    void *self, *found;
    pthread_t id;
    int of_thread = -1, ended;
    ERRNO(self = dlopen(NULL, RTLD_NOW));
    ERRNO(found = dlsym(self, "printf"));
    printf("found %d\n", found != NULL);
    ERRNO(found = dlsym(self, "no_such_name"));
    ERRNO(printf("%s\n", dlerror() ? "an error" : "no error"));
    ERRNO(found = dlsym(RTLD_DEFAULT, "malloc"));
    ERRNO(found = dlsym(RTLD_NEXT, "malloc"));
    ERRNO(found = dlopen("libm.so.6", RTLD_NOW));
    ERRNO(dlclose(found));
    ERRNO(found = dlopen("/no/such.so", RTLD_NOW));
    printf("%s\n", dlerror());
    ERRNO(pthread_create(&id, NULL, thread, &of_thread));
    pthread_join(id, NULL);
    printf("errno of a new thread: %d\n", of_thread);
    ERRNO(close(-1));
    ERRNO(close(open("/dev/null", O_RDONLY)));
    ERRNO(dup2(1, 9));
    ERRNO(close(9));
    ERRNO((void)setenv("STATE", "1", 1));
    ERRNO((void)getenv("LANG"));
    ERRNO(free(malloc(100)));
    ERRNO(fclose(fopen("/dev/null", "r")));
    fflush(stdout);
    errno = 1234;
    pid_t child = fork();
    if (child == 0) {
        printf("in a child: errno %d\n", errno);
        fflush(stdout);
        _exit(errno == 1234 ? 3 : 4);
    }
    waitpid(child, &ended, 0);
    printf("fork: %x\n", ended);
    child = vfork();
    if (child == 0)
        _exit(5);
    waitpid(child, &ended, 0);
    printf("vfork: %x\n", ended);
    printf("system: %x\n", system("exit 6"));
}

int main(int argc, char **argv)
{
    printf("errno at first: %d\n", errno);
    printf("an error of dlopen's at first: %d\n", dlerror() != NULL);
    atexit(at_exit);
    printf("arguments: %d %s\n", argc, argc > 1 ? argv[1] : "");
    /* With NVTX ranges on, the library sets the variable that names NVTX's tool to itself. This is documented, so
     * the variable is left out. */
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "LD_PRELOAD=", 11) != 0 && strncmp(*variable, "TLLM", 4) != 0 &&
            strncmp(*variable, "NVTX_INJECTION64_PATH=", 22) != 0)
            printf("variable %s\n", *variable);
    signals();
    descriptors();
    limits();
    status();
    printf("rounding %d exceptions %d\n", fegetround(), fetestexcept(FE_ALL_EXCEPT));
    printf("locale %s\n", setlocale(LC_ALL, NULL));
    printf("dumpable %d child subreaper %d parent's death %d\n", prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS),
           prctl(PR_GET_TIMERSLACK) > 0);
    struct itimerval timer;
    getitimer(ITIMER_REAL, &timer);
    printf("timer %ld\n", (long)(timer.it_value.tv_sec + timer.it_value.tv_usec));
    printf("buffered: %d\n", setvbuf(stderr, NULL, _IONBF, 0));
    errors();
    descriptors();
    status();
    signals();
    return 7;
}
