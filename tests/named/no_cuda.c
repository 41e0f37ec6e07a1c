#include <stdio.h>

__attribute__((noinline)) long lonely_step(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n * 7 + 1;
}

int main(void)
{
    long sum = 0;
    for (long n = 0; n < 1000; n++)
        sum += lonely_step(n);
    printf("sum %ld\n", sum);
    return 5;
}
