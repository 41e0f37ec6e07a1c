/* An engine that is known by its library, or by its step where that is linked in. */
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
