/* llama_host [calls]: a program that runs an engine. A step has three waits, and one of the steps also has a
 * stream capture. With `calls`, the engine's function makes the steps; otherwise the program makes them itself. */
#include "program.h"

#include "llama.h"
#include "loop.h"

static void three_steps(void *loop, int n)
{
    for (int i = 0; i < 3; i++)
        loop_step(loop, 3 * n + i);
}

int main(int count, char **words)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    options.capture_at = 6;
    loop_open(&loop, &options);
#ifdef OPENED
    void *library = open_beside("libllama.so", RTLD_NOW | RTLD_LOCAL);
    int (*decode)(step *, void *, int) = (int (*)(step *, void *, int))find(library, "llama_decode");
#else
    int (*volatile decode)(step *, void *, int) = llama_decode;
#endif
    long sum = 0;
    for (int n = 0; n < 40; n++)
        if (count > 1)
            sum += decode(three_steps, &loop, n);
        else
            three_steps(&loop, n);
    printf("sum %ld checksum %016llx calls %d\n", sum, (unsigned long long)loop_close(&loop), count > 1 ? 40 : 0);
    return 0;
}
