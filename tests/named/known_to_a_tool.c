/* A program with a function that a preloaded tool looks up and calls on its own thread, possibly before main. */
#include "program.h"

#include "loop.h"

__attribute__((visibility("default"), noinline)) long named_busy(long n)
{
    volatile long sum = n;
    for (int i = 0; i < 10; i++)
        sum += i;
    return sum;
}

int main(void)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    loop_step(&loop, 0);
    printf("sum %ld checksum %016llx\n", named_busy(3), (unsigned long long)loop_close(&loop));
    return 0;
}
