#include "program.h"

#include "loop.h"
#include "vector_library.h"

int main(void)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    double sum = 0;
    /* The sum is in different registers during the two calls, because their calling conventions
     * preserve different registers. */
    for (int n = 0; n < 50; n++)
        sum += vector_step(n) * sum + plain_step(n);
    loop_step(&loop, 0);
    printf("sum %g checksum %016llx calls 50\n", sum, (unsigned long long)loop_close(&loop));
    return 0;
}
