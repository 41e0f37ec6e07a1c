/* A loop of numbered steps with an event:
 *   odd WHAT STEPS AT [ARGUMENT]
 * The event WHAT happens at the beginning or before step AT (see `situations` below). The loop's result goes to
 * standard output. */
#include "program.h"

#include "loop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

extern char **environ;

enum { OWN_FILES = 512 };

static char **arguments;
static const char *argument;
static struct loop loop;
static int own[OWN_FILES], own_count;

static void want(int is_so, const char *what)
{
    if (!is_so) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(3);
    }
}

/* Returns the value of a line in /proc/self/status, in bytes. */
static rlim_t status_bytes(const char *name)
{
    char line[256];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    want(status != NULL, "status");
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), ": %lu", &kib);
    fclose(status);
    return (rlim_t)kib << 10;
}

static void limit(int resource, rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(resource, &limit);
    limit.rlim_cur = bytes;
    want(setrlimit(resource, &limit) == 0, "setrlimit");
}

static void unlimit(int resource)
{
    struct rlimit limit;
    getrlimit(resource, &limit);
    limit.rlim_cur = limit.rlim_max;
    want(setrlimit(resource, &limit) == 0, "setrlimit");
}

static void write_to(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    want(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(file);
}

static void rest(long milliseconds)
{
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void nothing(void)
{
}

/* Lowers the limit of the address space to the current size, so that no more memory can be mapped. */
static void fill_addresses(void)
{
    limit(RLIMIT_AS, status_bytes("VmSize"));
}

static void empty_addresses(void)
{
    unlimit(RLIMIT_AS);
}

/* Returns 1 if all other threads of the process sleep. */
static int others_sleep(void)
{
    DIR *tasks = opendir("/proc/self/task");
    want(tasks != NULL, "/proc/self/task");
    int sleep = 1;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[64], state = 0;
        if (task->d_name[0] == '.' || atoi(task->d_name) == (int)syscall(SYS_gettid))
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", atoi(task->d_name));
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && state != 'S')
            sleep = 0;
        fclose(file);
    }
    closedir(tasks);
    return sleep;
}

/* Lowers the limit of data memory to the current size, once all other threads sleep. If a thread made its first
 * driver call after that, glibc could not allocate the driver's thread-local variables and would end the
 * process. */
static void fill_data(void)
{
    for (int looks = 0; looks < 5; looks = others_sleep() ? looks + 1 : 0)
        usleep(10000);
    limit(RLIMIT_DATA, status_bytes("VmData"));
}

static void empty_data(void)
{
    unlimit(RLIMIT_DATA);
}

/* Uses up all memory, including free blocks in the allocator's own pages. If a thread made its first driver call
 * after that, the process would end. */
static void take_all_data(void)
{
    limit(RLIMIT_DATA, status_bytes("VmData"));
    for (size_t size = 1 << 20; size >= 16; size /= 2)
        while (malloc(size) != NULL)
            ;
}

/* Drops the capability to lock memory. It has to be dropped before other threads start, because each thread has
 * its own capabilities. */
static void lock_no_more_than_allowed(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    want(syscall(SYS_capget, &header, sets) == 0, "capget");
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
    want(syscall(SYS_capset, &header, sets) == 0, "capset");
}

/* All memory that is mapped from now on must be locked, but the limit allows almost no locked
 * memory. */
static void lock_memory(void)
{
    limit(RLIMIT_MEMLOCK, 32 << 10);
    want(mlockall(MCL_FUTURE) == 0, "mlockall");
}

static void unlock_memory(void)
{
    munlockall();
}

/* Uses more memory than the control group allows. */
static void use_up_memory(void)
{
    for (size_t size = 1 << 20;; size = 1 << 20) {
        char *more = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        want(more != MAP_FAILED, "mmap");
        memset(more, 1, size);
    }
}

/* Forks a child that calls `act`, which acts on this process. Waits for the child. */
static void from_outside(void (*act)(void))
{
    pid_t child = fork();
    if (child == 0) {
        act();
        _exit(0);
    }
    if (wait_for(child) != 0)
        exit(3);
}

static void stop_and_continue(void)
{
    kill(getppid(), SIGSTOP);
    rest(400);
    kill(getppid(), SIGCONT);
}

static void be_stopped(void)
{
    from_outside(stop_and_continue);
}

/* Moves this process out of the control group with the folder `group`, freezes the control group
 * for a while, and thaws it again. */
static void freeze(const char *group)
{
    char state[PATH_MAX], outside[PATH_MAX];
    snprintf(outside, sizeof outside, "%s/../cgroup.procs", group);
    write_to(outside, "0");
    snprintf(state, sizeof state, "%s/freezer.state", group);
    int is_first = access(state, F_OK) == 0;
    if (!is_first)
        snprintf(state, sizeof state, "%s/cgroup.freeze", group);
    write_to(state, is_first ? "FROZEN" : "1");
    rest(400);
    write_to(state, is_first ? "THAWED" : "0");
}

static void freeze_parent(void)
{
    freeze(argument);
}

static void be_frozen(void)
{
    from_outside(freeze_parent);
}

static void dump(void)
{
    char parent[16];
    snprintf(parent, sizeof parent, "%d", getppid());
    unsetenv("LD_PRELOAD");
    int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    dup2(null, 2);
    execlp("gcore", "gcore", "-o", "image", parent, (char *)NULL);
    _exit(127);
}

static void be_dumped(void)
{
    from_outside(dump);
}

static void *step_once(void *number)
{
    loop_step(&loop, *(int *)number);
    return NULL;
}

/* Makes each step on a new thread whose stack has the smallest possible size. */
static void step_on_a_tiny_stack(int n)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    const size_t size = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    want(pthread_attr_setstacksize(&attributes, size) == 0, "stack size");
    errno = pthread_create(&thread, &attributes, step_once, &n);
    want(errno == 0, "thread");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

static void *launch_once(void *unused)
{
    (void)unused;
    gpu_launch_kernel(loop.words, loop.stream);
    return NULL;
}

/* Runs a thousand threads in each step, one after the other, with one launch each. */
static void step_by_thousand_threads(int n)
{
    for (int i = 0; i < 1000; i++) {
        pthread_t thread;
        errno = pthread_create(&thread, NULL, launch_once, NULL);
        want(errno == 0, "thread");
        pthread_join(thread, NULL);
    }
    loop_step(&loop, n);
}

static void open_own(void)
{
    char name[32];
    snprintf(name, sizeof name, "own-%d", own_count);
    own[own_count] = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    want(own[own_count] >= 0, "own file");
    own_count++;
}

/* Closes all descriptors, and opens files of the program under the same numbers. Removes the record's folder
 * (ARGUMENT), so the library cannot reopen the record. */
static void close_all(void)
{
    char command[PATH_MAX];
    snprintf(command, sizeof command, "unset LD_PRELOAD; rm -r %s", argument);
    want(system(command) == 0, "rm");
    want(syscall(SYS_close_range, 3, ~0u, 0) == 0, "close_range");
    while (own_count < OWN_FILES - 1 && (own_count == 0 || own[own_count - 1] < 200))
        open_own();
}

static void take_all(void)
{
    open_own();
    for (int other = 3; other < 1024; other++)
        if (other != own[0] && fcntl(other, F_GETFD) >= 0)
            want(dup2(own[0], other) == other, "dup2");
}

/* Prints the contents of the program's own files, which show if another library wrote to their descriptors. */
static void look_at_own(void)
{
    for (int n = 0; n < own_count; n++) {
        struct stat status, there;
        char name[32];
        snprintf(name, sizeof name, "own-%d", n);
        want(fstat(own[n], &status) == 0 && stat(name, &there) == 0, name);
        if (status.st_size != 0 || status.st_ino != there.st_ino || lseek(own[n], 0, SEEK_CUR) != 0)
            printf("%s was touched\n", name);
    }
    puts("own files looked at");
}

/* Sets a long title like util-linux's setproctitle: copies the environment to other memory. The title then gets the
 * space from the first argument to the end of the last variable. */
static void set_title(void)
{
    char *begin = arguments[0], *end = begin;
    for (char **each = environ; *each != NULL; each++) {
        end = *each + strlen(*each) + 1;
        *each = strdup(*each);
    }
    argument = NULL;
    memset(begin, 0, (size_t)(end - begin));
    strcpy(begin, "ray::IDLE");
    prctl(PR_SET_NAME, "ray::IDLE");
}

static void lose_environment(void)
{
    clearenv();
    environ = NULL;
    prctl(PR_SET_NAME, "ray::work()");
}

static void change_root(void)
{
    want(chroot(argument) == 0 && chdir("/") == 0, "chroot");
}

static void change_user(void)
{
    want(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0, "setresuid");
    prctl(PR_SET_DUMPABLE, 0);
}

static void unmount(void)
{
    want(umount2(argument, MNT_DETACH) == 0, "umount");
}

static void run_alone(void)
{
    const struct sched_param first = {.sched_priority = 10};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    want(sched_setaffinity(0, sizeof one, &one) == 0, "affinity");
    want(sched_setscheduler(0, SCHED_FIFO, &first) == 0, "SCHED_FIFO");
}

static void be_killed(void)
{
    raise(SIGKILL);
}

static void be_terminated(void)
{
    raise(SIGTERM);
}

static void fail_at_first(void)
{
    const char *count = getenv("TORCHELASTIC_RESTART_COUNT");
    if (count != NULL && strcmp(count, "0") == 0)
        abort();
}

static void step_here(int n)
{
    loop_step(&loop, n);
}

static void wait_for_end(pid_t child)
{
    int status = 0;
    want(waitpid(child, &status, __WALL) == child, "waitpid");
    printf("child %x\n", (unsigned)status);
}

static int end_at_once(void *unused)
{
    (void)unused;
    _exit(5);
}

static void clone_with_own_memory(void)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    wait_for_end(clone(end_at_once, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, NULL));
}

/* Forks by the system call, not by fork(), so no fork handlers run. The child calls exit(), which runs exit
 * handlers. */
static void fork_by_number(void)
{
    fflush(stdout);
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        exit(6);
    wait_for_end(child);
}

static void fork_and_exit(void)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        exit(6);
    wait_for_end(child);
}

static void spawn(void)
{
    char *const command[] = {"true", NULL};
    pid_t child = 0;
    want(posix_spawnp(&child, "true", NULL, NULL, command, environ) == 0, "posix_spawn");
    wait_for_end(child);
    child = vfork();
    if (child == 0)
        _exit(4);
    wait_for_end(child);
}

static void on_signal(int number)
{
    (void)number;
}

/* Makes a timer's signals interrupt blocking system calls. The signal's handler has no SA_RESTART, so these
 * calls fail with EINTR. */
static void raise_storm(void)
{
    const struct sigaction action = {.sa_handler = on_signal};
    const struct itimerval often = {{0, 200}, {0, 200}};
    want(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    want(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
}

static void end_storm(void)
{
    const struct itimerval none = {0};
    want(setitimer(ITIMER_REAL, &none, NULL) == 0, "setitimer");
}

static ucontext_t outside, inside;
static int next;

static void step_for_ever(void)
{
    for (;;) {
        loop_step(&loop, next);
        swapcontext(&inside, &outside);
    }
}

static void make_coroutine(void)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    want(getcontext(&inside) == 0, "getcontext");
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    makecontext(&inside, step_for_ever, 0);
}

static void step_in_coroutine(int n)
{
    next = n;
    want(swapcontext(&outside, &inside) == 0, "swapcontext");
}

static int has_stepped;

static void *step_and_wait(void *n)
{
    loop_step(&loop, *(const int *)n);
    __atomic_store_n(&has_stepped, 1, __ATOMIC_RELEASE);
    sem_t never;
    sem_init(&never, 0, 0);
    sem_wait(&never);
    return NULL;
}

static void step_on_a_cancelled_thread(int n)
{
    pthread_t thread;
    has_stepped = 0;
    want(pthread_create(&thread, NULL, step_and_wait, &n) == 0, "pthread_create");
    while (!__atomic_load_n(&has_stepped, __ATOMIC_ACQUIRE))
        sched_yield();
    want(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0, "pthread_cancel");
}

static void *exec_again(void *unused)
{
    (void)unused;
    char *const command[] = {arguments[0], "nothing", arguments[2], arguments[3], NULL};
    execve("/proc/self/exe", command, environ);
    return NULL;
}

static void exec_on_thread(void)
{
    pthread_t thread;
    fflush(stdout);
    want(pthread_create(&thread, NULL, exec_again, NULL) == 0, "pthread_create");
    for (;;)
        pause();
}

static void forbid_files(void)
{
    limit(RLIMIT_FSIZE, 0);
}

static void allow_files(void)
{
    unlimit(RLIMIT_FSIZE);
}

static void mask_all_rights(void)
{
    umask(0777);
}

static void unshare_files(void)
{
    want(unshare(CLONE_FILES | CLONE_FS | CLONE_NEWNS) == 0, "unshare");
}

static void reuse_standard_error(void)
{
    close(2);
    own[0] = open("own", O_RDWR | O_CREAT | O_EXCL, 0600);
    want(own[0] == 2, "descriptor 2");
}

static void look_at_standard_error(void)
{
    struct stat status;
    want(fstat(2, &status) == 0, "fstat");
    printf("own file has %ld bytes\n", (long)status.st_size);
}

static const struct situation {
    const char *name;
    void (*begin)(void), (*happen)(void), (*end)(void);
    void (*step)(int);
} situations[] = {
    {"nothing", nothing, nothing, nothing, step_here},
    {"addresses", nothing, fill_addresses, empty_addresses, step_here},
    {"data", nothing, fill_data, empty_data, step_here},
    {"all_data", nothing, take_all_data, empty_data, step_here},
    {"locked", lock_no_more_than_allowed, lock_memory, unlock_memory, step_here},
    {"memory", nothing, use_up_memory, nothing, step_here},
    {"stopped", nothing, be_stopped, nothing, step_here},
    {"frozen", nothing, be_frozen, nothing, step_here},
    {"dumped", nothing, be_dumped, nothing, step_here},
    {"threads", nothing, nothing, nothing, step_by_thousand_threads},
    {"tiny", nothing, nothing, nothing, step_on_a_tiny_stack},
    {"closed", nothing, close_all, look_at_own, step_here},
    {"taken", nothing, take_all, look_at_own, step_here},
    {"title", set_title, lose_environment, nothing, step_here},
    {"root", nothing, change_root, nothing, step_here},
    {"user", nothing, change_user, nothing, step_here},
    {"unmounted", nothing, unmount, nothing, step_here},
    {"alone", run_alone, nothing, nothing, step_here},
    {"killed", nothing, be_killed, nothing, step_here},
    {"terminated", nothing, be_terminated, nothing, step_here},
    {"fails", nothing, fail_at_first, nothing, step_here},
    {"cloned", nothing, clone_with_own_memory, nothing, step_here},
    {"forked", nothing, fork_by_number, nothing, step_here},
    {"child", nothing, fork_and_exit, nothing, step_here},
    {"spawned", nothing, spawn, nothing, step_here},
    {"storm", nothing, raise_storm, end_storm, step_here},
    {"coroutine", make_coroutine, nothing, nothing, step_in_coroutine},
    {"cancelled", nothing, nothing, nothing, step_on_a_cancelled_thread},
    {"execed", nothing, exec_on_thread, nothing, step_here},
    {"files", nothing, forbid_files, allow_files, step_here},
    {"masked", mask_all_rights, nothing, nothing, step_here},
    {"unshared", nothing, unshare_files, nothing, step_here},
    {"reused", nothing, reuse_standard_error, look_at_standard_error, step_here},
};

int main(int argc, char **argv)
{
    alarm(540);
    if (argc < 4)
        return 2;
    const struct situation *situation = NULL;
    for (size_t n = 0; n < sizeof situations / sizeof situations[0]; n++)
        if (strcmp(argv[1], situations[n].name) == 0)
            situation = &situations[n];
    if (situation == NULL)
        return 2;
    const int steps = atoi(argv[2]), at = atoi(argv[3]);
    arguments = argv;
    argument = argc > 4 ? argv[4] : "";
    const struct loop_options options = loop_defaults();
    situation->begin();
    loop_open(&loop, &options);
    for (int n = 0; n < steps; n++) {
        if (n == at)
            situation->happen();
        situation->step(n);
    }
    situation->end();
    printf("%d steps, checksum %016llx\n", steps, (unsigned long long)loop_close(&loop));
    return 7;
}
