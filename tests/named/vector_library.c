#include "vector_library.h"

VECTOR double vector_step(double x)
{
    return x * 0.25;
}

double plain_step(double x)
{
    return x * 0.5;
}
