/* sanitized [cuda]: a program for sanitizers. Two threads, an allocation, a look-up; with `cuda`, some steps. */
#include "hostile.h"

static struct loop loop;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long sum;

static void *add(void *number)
{
    long *copy = malloc(sizeof *copy);
    *copy = *(long *)number;
    pthread_mutex_lock(&mutex);
    sum += *copy;
    pthread_mutex_unlock(&mutex);
    free(copy);
    return NULL;
}

int main(int argc, char **argv)
{
    long number = 4;
    hostile_begin();
    pthread_t thread = start_thread(add, &number);
    add(&number);
    pthread_join(thread, NULL);
    printf("sum %ld, getppid %s, cuMissing %s\n", sum,
           dlsym(RTLD_DEFAULT, "getppid") != NULL ? "found" : "missing",
           dlsym(RTLD_NEXT, "cuMissing") != NULL ? "found" : "missing");
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        open_default(&loop);
        make_steps(&loop, 8);
        print_result(&loop);
    }
    return 3;
}
