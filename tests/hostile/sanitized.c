/* sanitized [cuda]: a program for sanitizers. It uses two threads, allocates, reads the environment, and looks up a
 * function. With `cuda`, it also makes some steps. */
#include "hostile.h"

extern char **environ;

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

/* Reads every byte of the environment, including variables that the library has added. MemorySanitizer reports
 * those bytes if it does not know that they were written. */
static int variables_without_a_name(void)
{
    int found = 0;
    for (char **variable = environ; *variable; variable++) {
        const char *at = *variable;
        found += *at == '=';
        while (*at)
            at++;
    }
    return found;
}

int main(int argc, char **argv)
{
    long number = 4;
    hostile_begin();
    pthread_t thread = start_thread(add, &number);
    add(&number);
    pthread_join(thread, NULL);
    printf("sum %ld, %d variables without a name, getppid %s, cuMissing %s\n", sum, variables_without_a_name(),
           dlsym(RTLD_DEFAULT, "getppid") != NULL ? "found" : "missing",
           dlsym(RTLD_NEXT, "cuMissing") != NULL ? "found" : "missing");
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        open_default(&loop);
        make_steps(&loop, 8);
        print_result(&loop);
    }
    return 3;
}
