/* The library of an engine: its step, as far as it matters here. */
#include "llama.h"

int llama_decode(step *step, void *argument, int n)
{
    step(argument, n);
    return n;
}
