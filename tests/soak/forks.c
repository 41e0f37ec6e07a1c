/* forks TICKETS SECONDS: forks a child for each ticket, from four threads at once. Each child makes steps in two
 * threads, and meanwhile forks a child that ends at once. The children end in three different ways. */
#include "pace.h"

#include "loop.h"

#include <pthread.h>

enum { THREADS = 4, STEPS = 20, STATUS = 6 };

static void *steps(void *is_first)
{
    struct loop loop;
    struct loop_options options = loop_defaults();
    options.capture_mode = 2;
    loop_open(&loop, &options);
    for (int n = 0; n < STEPS; n++) {
        loop_step(&loop, n);
        if (is_first != NULL && n == STEPS / 2) {
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(STATUS);
            if (grandchild < 0 || wait_for(grandchild) != STATUS)
                _exit(4);
        }
    }
    loop_close(&loop);
    return NULL;
}

static void child(long ticket)
{
    pthread_t other;
    gpu_use();
    if (pthread_create(&other, NULL, steps, NULL) != 0)
        _exit(3);
    steps(&other);
    pthread_join(other, NULL);
    if (ticket % 2 == 0)
        _exit(STATUS);
    exit(STATUS);
}

static void *parent(void *unused)
{
    (void)unused;
    for (long ticket; (ticket = pace_next()) >= 0;) {
        pid_t pid = fork();
        if (pid == 0)
            child(ticket);
        int status = pid < 0 ? -1 : wait_for(pid);
        if (status != STATUS) {
            fprintf(stderr, "child %ld ended with %d\n", ticket, status);
            exit(1);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    pace_begin(argc, argv);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, parent, NULL) != 0)
            return 3;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
