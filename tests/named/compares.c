#include "program.h"

#include "loop.h"

long self_step(long n);

int main(void)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    long sum = 0;
    for (int n = 0; n < 50; n++)
        sum += self_step(n);
    loop_step(&loop, 0);
    printf("sum %ld checksum %016llx calls 50\n", sum, (unsigned long long)loop_close(&loop));
    return 0;
}
