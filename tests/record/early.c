/* Forty calls of a function, of which the first five come before CUDA is used. */
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
