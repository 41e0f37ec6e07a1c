/* Calls the function that the rule names before the thread's first CUDA call. */
#include "program.h"

#include "standin.h"

static volatile int calls;

__attribute__((noinline)) void early_step(void)
{
    calls++;
}

int main(void)
{
    program_begin();
    for (int n = 0; n < 10; n++)
        early_step();
    for (int n = 0; n < 10; n++) {
        early_step();
        cudaDeviceSynchronize();
    }
    printf("calls %d\n", calls);
    return 0;
}
