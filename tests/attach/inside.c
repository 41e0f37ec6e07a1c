/* inside [altstack]: a thread's signal handler interrupts it after the first instruction of a function of the
 * driver, while a second thread sleeps. The handler prints `ready` and waits until there is a file `go_on`. Then the
 * thread calls the function repeatedly until there is a file `end`, and prints `bad N`: N calls returned something
 * else than the first call. */
#define _GNU_SOURCE
#include "standin_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { TRAP_FLAG = 0x100, ALTSTACK = 64 << 10 };

typedef CUresult function(CUdeviceptr *, size_t);
static function *allocate;

static void rest(void)
{
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
}

static void handler(int number, siginfo_t *info, void *place)
{
    (void)number, (void)info;
    ucontext_t *context = place;
    unsigned long pc = (unsigned long)context->uc_mcontext.gregs[REG_RIP];
    if (pc <= (unsigned long)allocate || pc >= (unsigned long)allocate + 5)
        return;
    context->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    printf("ready\n");
    fflush(stdout);
    while (access("go_on", F_OK) != 0)
        rest();
}

__attribute__((noinline)) static CUresult call_step_by_step(CUdeviceptr *pointer)
{
    __asm__ volatile("pushfq\n\torl $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    CUresult result = allocate(pointer, 0);
    /* Clears the trap flag, which makes the thread execute one instruction at a time. If the
     * signal handler has interrupted the function, it has already cleared the flag. */
    __asm__ volatile("pushfq\n\tandl $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    return result;
}

static void *sleep_on(void *nothing)
{
    for (;;)
        rest();
    return nothing;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    if (argc > 1 && strcmp(argv[1], "altstack") == 0) {
        stack_t stack = {.ss_size = ALTSTACK};
        stack.ss_sp = mmap(NULL, ALTSTACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sigaltstack(&stack, NULL) != 0)
            return 1;
        action.sa_flags |= SA_ONSTACK;
    }
    sigaction(SIGTRAP, &action, NULL);
    pthread_t sleeper;
    pthread_create(&sleeper, NULL, sleep_on, NULL);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return 1;
    allocate = (function *)dlsym(driver, "cuMemAlloc_v2");
    CUdeviceptr pointer = 0;
    CUresult first = call_step_by_step(&pointer);
    int bad = 0;
    while (access("end", F_OK) != 0) {
        bad += allocate(&pointer, 0) != first;
        rest();
    }
    printf("bad %d, \n", bad);
    return 0;
}
