/* Calls the named function in fork handlers (pthread_atfork). They run between the fork handlers of other
 * libraries. */
#include "program.h"

#include <pthread.h>

#include "standin.h"

static int calls;

__attribute__((noinline)) void handled_step(void)
{
    calls++;
    __asm__ volatile("" : : : "memory");
}

static void before_all(void)
{
    pthread_atfork(handled_step, handled_step, handled_step);
}

__attribute__((section(".preinit_array"), used)) static void (*first)(void) = before_all;

int main(void)
{
    program_begin();
    cudaFree(NULL);
    for (int n = 0; n < 5; n++) {
        handled_step();
        cudaDeviceSynchronize();
        pid_t child = fork();
        if (child == 0) {
            handled_step();
            _exit(calls);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("%d in the child\n", WEXITSTATUS(status));
        fflush(stdout);
    }
    printf("calls %d\n", calls);
    return 0;
}
