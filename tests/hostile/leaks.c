/* Frees everything that it allocates, in threads that use CUDA at once and in a child that ends by exit(), so a leak
 * checker finds no leak of the program's own. `leaks lost` loses a byte. */
#include "hostile.h"

#include <sys/wait.h>

enum { THREADS = 8, STEPS = 12, STATUS = 3 };

static pthread_barrier_t all_there;

static void *live(void *unused)
{
    (void)unused;
    struct loop loop;
    pthread_barrier_wait(&all_there);
    open_default(&loop);
    make_steps(&loop, STEPS);
    loop_close(&loop);
    return NULL;
}

int main(int argc, char **argv)
{
    (void)argv;
    hostile_begin();
    if (argc > 1) {
        void *volatile lost = malloc(1);
        lost = NULL;
        return lost != NULL;
    }
    pthread_t threads[THREADS];
    pthread_barrier_init(&all_there, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(live, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&all_there);
    pid_t child = fork();
    if (child == 0)
        exit(STATUS);
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}
