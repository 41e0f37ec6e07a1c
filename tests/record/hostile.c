/* Does things that a recorder does not expect while a window is open, and counts its launches (lines.h):
 *   hostile FILE signals|jumps|clone|forks|exec|closes|moves|spawns|crowd|contexts [again] */
#define _GNU_SOURCE
#include "../nvtx/loop.h"
#include "lines.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

/* Makes one step: a launch within a range. */
static void step(struct line *line)
{
    nvtxRangePushA("step");
    launch();
    count(&line->calls);
    nvtxRangePop();
    count(&line->pushed);
}

static void steps(struct line *line, int times)
{
    atomic_store(&line->number, (uint64_t)gettid());
    for (int i = 0; i < times; i++)
        step(line);
}

static void tick_every(long microseconds)
{
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    if (setitimer(ITIMER_REAL, &timer, NULL) != 0)
        exit(3);
}

static void handle(void (*handler)(int))
{
    static char stack[64 * 1024];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&other, NULL) != 0 || sigaction(SIGALRM, &action, NULL) != 0)
        exit(3);
}

static void ranges(void)
{
    nvtxRangePushA("another");
    nvtxRangePop();
    count(&lines[0].pushed);
}

static void ranges_in_handler(int signal)
{
    (void)signal;
    ranges();
}

/* A signal handler makes ranges on a separate stack while the program is in the middle of recording others. It makes
 * no CUDA calls, because the stand-in has locks. */
static void signals(void)
{
    handle(ranges_in_handler);
    tick_every(50);
    steps(&lines[0], 100000);
    tick_every(0);
}

static sigjmp_buf away;

static void jump(int signal)
{
    (void)signal;
    siglongjmp(away, 1);
}

/* A signal handler leaves by longjmp while events are being recorded. These events are never finished, but later
 * events must be recorded again. The signal is unblocked only after the jump: on a busy machine, the next signal
 * is already pending, and nested handlers would fill the stack. */
static void jumps(void)
{
    volatile int left = 0;
    /* NVTX looks for its tool once, at its first use. If a thread jumped out of this search, other threads would
     * wait for the search forever. So the search is done before the signals begin. */
    nvtxInitialize(NULL);
    handle(jump);
    atomic_store(&lines[0].number, (uint64_t)gettid());
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    if (sigsetjmp(away, 0) != 0)
        left++;
    sigprocmask(SIG_UNBLOCK, &alarm, NULL);
    tick_every(left < 2000 ? 50 : 0);
    while (left < 2000)
        ranges();
    tick_every(0);
    steps(&lines[0], 20000);
}

/* Makes copies of the process by the system call clone, so no fork handler runs. */
static void clone_it(void)
{
    steps(&lines[0], 1000);
    for (int i = 0; i < 20; i++) {
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (child == 0) {
            for (int n = 0; n < 5000; n++) {
                nvtxRangePushA("copy");
                launch();
                nvtxRangePop();
            }
            _exit(0);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            exit(4);
    }
    steps(&lines[0], 1000);
}

static void *steps_of_thread(void *argument)
{
    steps(argument, 30000);
    return NULL;
}

/* Forks while other threads are in the middle of recording an event. */
static void fork_it(void)
{
    /* NVTX is initialized before the forks: a child that is forked in the middle of the initialization would wait
     * forever, with any NVTX tool. */
    nvtxInitialize(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, steps_of_thread, &lines[i]);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int n = 0; n < 100; n++) {
                nvtxRangePushA("copy");
                nvtxRangePop();
            }
            _exit(0);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            exit(4);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* Renames the record, and then removes it. */
static void move_it(void)
{
    char name[64];
    snprintf(name, sizeof name, "%d.tllmprof", (int)getpid());
    steps(&lines[0], 1000);
    if (rename(name, "moved.tllmprof") != 0)
        exit(5);
    steps(&lines[0], 40000);
    if (link("moved.tllmprof", "kept.tllmprof") != 0 || unlink("moved.tllmprof") != 0)
        exit(5);
    steps(&lines[0], 40000);
}

static void become_another(char **argv, int is_again)
{
    steps(&lines[is_again], 1000);
    if (!is_again)
        execl("/proc/self/exe", argv[0], argv[1], argv[2], "again", NULL);
}

/* Closes all descriptors that the program did not open, and then records so much that the record's file has to
 * grow. */
static void close_all(void)
{
    steps(&lines[0], 1000);
    for (int i = 0; i < 4; i++) {
        if (syscall(SYS_close_range, 3, ~0U, 0) != 0)
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
        steps(&lines[0], 40000);
    }
}

/* Starts children with vfork. A child shares the memory of its parent until it executes another program. */
static void spawns(void)
{
    for (int i = 0; i < 100; i++) {
        steps(&lines[0], 100);
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            exit(4);
    }
}

static pthread_barrier_t together;

static void *one_of_many(void *argument)
{
    steps(argument, 1);
    pthread_barrier_wait(&together);
    steps(argument, 2);
    return NULL;
}

static void crowd(void)
{
    enum { MANY = 1000 };
    static pthread_t threads[MANY];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    pthread_barrier_init(&together, NULL, MANY);
    for (int i = 0; i < MANY; i++)
        if (pthread_create(&threads[i], &small, one_of_many, &lines[i]) != 0)
            exit(5);
    for (int i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
}

static ucontext_t outside, contexts[2];

static void in_context(int which)
{
    for (int i = 0; i < 2000; i++) {
        nvtxRangePushA("over a switch");
        launch();
        count(&lines[0].calls);
        swapcontext(&contexts[which], &contexts[!which]);
        nvtxRangePop();
        count(&lines[0].pushed);
    }
}

/* Two coroutines with small stacks take turns to push and pop ranges, so the ranges do not nest. */
static void switch_contexts(void)
{
    static char stacks[2][32 * 1024];
    atomic_store(&lines[0].number, (uint64_t)gettid());
    for (int i = 0; i < 2; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = i == 0 ? &contexts[1] : &outside;
        makecontext(&contexts[i], (void (*)(void))in_context, 1, i);
    }
    swapcontext(&outside, &contexts[0]);
}

int main(int argc, char **argv)
{
    int is_again = argc > 3;
    if (argc < 3)
        return 2;
    lines_open(argv[1]);
    use_cuda();
    /* The rule counts waits. So these waits begin the first iterations, and the window opens. */
    cudaDeviceSynchronize();
    cudaDeviceSynchronize();
    const char *what = argv[2];
    if (strcmp(what, "signals") == 0)
        signals();
    else if (strcmp(what, "jumps") == 0)
        jumps();
    else if (strcmp(what, "clone") == 0)
        clone_it();
    else if (strcmp(what, "forks") == 0)
        fork_it();
    else if (strcmp(what, "moves") == 0)
        move_it();
    else if (strcmp(what, "exec") == 0)
        become_another(argv, is_again);
    else if (strcmp(what, "closes") == 0)
        close_all();
    else if (strcmp(what, "spawns") == 0)
        spawns();
    else if (strcmp(what, "crowd") == 0)
        crowd();
    else if (strcmp(what, "contexts") == 0)
        switch_contexts();
    else
        return 2;
    puts("done");
    return 7;
}
