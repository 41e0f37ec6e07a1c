/* Hands out tickets to the threads of a program. A ticket permits one thread to do one unit of work. Tickets
 * become due evenly over a number of seconds. On a busy machine, a ticket that is used late delays all later ones, so
 * that they do not follow each other faster. */
#ifndef PACE_H
#define PACE_H

#include "program.h"

#include <stdatomic.h>
#include <time.h>

static struct {
    atomic_long taken;
    atomic_llong late_ns; /* how much later than planned tickets become due */
    long tickets;
    double seconds, begin;
} pace;

static inline double pace_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Reads TICKETS and SECONDS, which are the first two arguments of every program in this folder. */
static inline void pace_begin(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "%s TICKETS SECONDS ...\n", argv[0]);
        exit(2);
    }
    pace.tickets = atol(argv[1]);
    pace.seconds = atof(argv[2]);
    pace.begin = pace_now();
    /* Ends the program if it runs far too long, in case the test that watches it was killed. */
    alarm((unsigned int)(3 * pace.seconds) + 120);
}

/* Waits until the next ticket is due, and returns its number; -1 if no ticket is left. */
static inline long pace_next(void)
{
    long ticket = atomic_fetch_add(&pace.taken, 1);
    if (ticket >= pace.tickets)
        return -1;
    double interval = pace.seconds / (double)pace.tickets;
    double planned = pace.begin + interval * (double)ticket;
    for (;;) {
        long long late_ns = atomic_load(&pace.late_ns);
        double wait = planned + (double)late_ns / 1e9 - pace_now();
        if (wait > 0) {
            struct timespec rest = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
            nanosleep(&rest, NULL);
            continue;
        }
        if (-wait <= interval || atomic_compare_exchange_strong(&pace.late_ns, &late_ns, late_ns + (long long)(-wait * 1e9)))
            return ticket;
    }
}

#endif
