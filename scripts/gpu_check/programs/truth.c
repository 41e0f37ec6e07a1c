// Makes the marks of truth.h available to Python programs, which load this library with ctypes.
#include "truth.h"

void mark(long n) { truth(n); }
