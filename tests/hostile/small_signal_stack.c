/* Calls _exit in a signal handler that has a small stack: 8 KB in addition to what the kernel stores there. */
#include "hostile.h"

#include <sys/mman.h>

static struct loop loop;

static void on_signal(int signal)
{
    (void)signal;
    _exit(9);
}

int main(void)
{
    enum { ROOM = 1 << 20 };
    hostile_begin();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = (8192 + (size_t)sysconf(_SC_MINSIGSTKSZ) + page - 1) & ~(page - 1);
    /* The memory below the handler's stack is not accessible, so a stack overflow ends the program. */
    char *room = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *bottom = room + ROOM - size;
    if (room == MAP_FAILED || mprotect(bottom, size, PROT_READ | PROT_WRITE) != 0)
        return 3;
    stack_t stack = {.ss_sp = bottom, .ss_size = size};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) != 0 || sigaction(SIGUSR1, &action, NULL) != 0)
        return 3;
    open_default(&loop);
    make_steps(&loop, 8);
    raise(SIGUSR1);
    return 0;
}
