/* Makes forty calls of the function early_step. The first five come before the program uses
 * CUDA. */
#include "../nvtx/loop.h"

__attribute__((noinline)) void early_step(int n)
{
    if (n >= 5)
        work();
    __asm__ volatile("" : : : "memory");
}

int main(void)
{
    for (int n = 0; n < 40; n++) {
        if (n == 5)
            use_cuda();
        early_step(n);
    }
    return 7;
}
