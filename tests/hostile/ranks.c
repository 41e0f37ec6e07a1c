/* ranks PROCESSES: starts processes with two ranks each, like a server. Each rank opens ranks_library.so and
 * takes part in 8 collectives. */
#define _GNU_SOURCE
#include "hostile.h"
#include "ranks.h"

#include <sys/mman.h>

typedef void take_part(struct meeting *meeting, int launches);

static struct meeting *meeting;

static void *one_rank(void *argument)
{
    void *library = open_beside("ranks_library.so", RTLD_NOW | RTLD_LOCAL);
    ((take_part *)find(library, "take_part"))(meeting, 8);
    return argument;
}

int main(int argc, char **argv)
{
    hostile_begin();
    int processes = argc > 1 ? atoi(argv[1]) : 1;
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return 3;
    meeting->ranks = 2 * processes;
    pid_t children[16];
    for (int n = 0; n < processes; n++) {
        children[n] = fork();
        if (children[n] != 0)
            continue;
        hostile_begin();
        pthread_t threads[] = {start_thread(one_rank, NULL), start_thread(one_rank, NULL)};
        for (int k = 0; k < 2; k++)
            pthread_join(threads[k], NULL);
        return 7;
    }
    for (int n = 0; n < processes; n++)
        printf("%d\n", wait_for(children[n]));
    printf("%d met, sum %016llx\n", atomic_load(&meeting->arrived), (unsigned long long)atomic_load(&meeting->sum));
    return 6;
}
