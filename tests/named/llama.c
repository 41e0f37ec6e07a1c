/* Stands for llama.cpp's library. It has only the function that makes a step. */
#include "llama.h"

int llama_decode(step *step, void *argument, int n)
{
    step(argument, n);
    return n;
}
