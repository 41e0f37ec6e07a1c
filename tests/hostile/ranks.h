/* The memory that all ranks of ranks.c share. */
#ifndef RANKS_H
#define RANKS_H

#include <stdatomic.h>

struct meeting {
    int ranks;
    atomic_int arrived;
    atomic_ullong sum;
};

#endif
