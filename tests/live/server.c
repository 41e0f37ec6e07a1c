/* server MICROSECONDS [BARRIER RANK RANKS]: a serving loop, a step in so many microseconds, until it is ended or there
 * is a file `end` here. While there is a file `pause` it waits for requests: it makes no step. With BARRIER, a file that
 * all ranks map, no rank begins a step before all others have come to it; one that does not come for long is left out.
 * Prints a line when its first step is over. */
#include "program.h"

#include "loop.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST = 16, LATE_MS = 1000 };

struct barrier {
    /* The step that each rank has come to, from 1 on; -1 for one that is left out. */
    _Atomic long at[MOST];
};

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void meet(struct barrier *barrier, int rank, int ranks, long step)
{
    long since = now_ms();
    atomic_store(&barrier->at[rank], step);
    for (int other = 0; other < ranks; other++) {
        for (;;) {
            long at = atomic_load(&barrier->at[other]);
            if (at < 0 || at >= step)
                break;
            /* The first step waits for programs to start. */
            if (step > 1 && now_ms() - since > LATE_MS)
                atomic_compare_exchange_strong(&barrier->at[other], &at, -1);
            usleep(50);
        }
    }
}

int main(int argc, char **argv)
{
    alarm(300);
    long period = argc > 1 ? atol(argv[1]) : 1000;
    struct barrier *barrier = NULL;
    int rank = 0, ranks = 1;
    if (argc > 4) {
        int file = open(argv[2], O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, sizeof *barrier) != 0)
            return 3;
        barrier = mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        rank = atoi(argv[3]);
        ranks = atoi(argv[4]);
    }
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    for (long step = 0; access("end", F_OK) != 0; step++) {
        while (access("pause", F_OK) == 0)
            usleep(1000);
        if (barrier != NULL)
            meet(barrier, rank, ranks, step + 1);
        loop_step(&loop, (int)step);
        usleep((useconds_t)period);
        if (step == 0) {
            printf("ready\n");
            fflush(stdout);
        }
    }
    printf("checksum %016llx\n", (unsigned long long)loop_close(&loop));
    return 0;
}
