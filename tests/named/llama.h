/* An engine that the rule `auto` recognizes by its library, or, with LINKED_IN, by the step
 * function within the program. */
#ifndef LLAMA_H
#define LLAMA_H

typedef void step(void *, int);

#ifdef LINKED_IN
static __attribute__((noinline)) int llama_decode(step *step, void *argument, int n)
{
    step(argument, n);
    return n;
}
#else
int llama_decode(step *step, void *argument, int n);
#endif

#endif
