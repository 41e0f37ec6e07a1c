/* Calls the function that the rule names, in the process itself, in a forked child and, with a second argument,
 * in a vfork child that executes another program. */
#include "program.h"

#include "loop.h"

static volatile long calls;

__attribute__((noinline)) long forking_step(long n)
{
    calls++;
    return n * 5 + calls;
}

int main(int count, char **words)
{
    (void)words;
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    long sum = 0;
    for (int n = 0; n < 10; n++)
        sum += forking_step(n);
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < 500; n++)
            sum += forking_step(n);
        _exit(sum % 100);
    }
    sum += wait_for(child);
    if (count > 1) {
        child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(9);
        }
        sum += wait_for(child);
    }
    for (int n = 0; n < 10; n++)
        sum += forking_step(n);
    loop_step(&loop, 0);
    printf("sum %ld checksum %016llx calls %ld\n", sum, (unsigned long long)loop_close(&loop), calls);
    return 0;
}
