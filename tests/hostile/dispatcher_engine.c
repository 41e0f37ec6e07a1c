/* The library that dispatcher.c opens and whose functions it calls. Each function adds its own number, of two
 * digits, to the caller's result. */
#include "dispatcher.h"

enum {
    BEFORE_ALL = 10,
#define X(name) number_of_##name,
    NAMES(X)
#undef X
};

#define X(name)                       \
    int name(int *result, void *none) \
    {                                 \
        (void)none;                   \
        *result += number_of_##name;  \
        return 0;                     \
    }
NAMES(X)
