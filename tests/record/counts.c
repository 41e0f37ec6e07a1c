/* Makes graph launches, and counts those that have returned in a file that outlives the process:
 *   counts FILE loop THREADS CALLS END    each thread makes CALLS (0: forever), all threads at once
 *   counts FILE short THREADS CALLS       each of THREADS threads makes CALLS; a few threads live at a time
 *   counts FILE forks CHILDREN CALLS      each child makes CALLS, and so does the parent in between
 * END is the way in which the process ends: return, _exit, crash, kill. The file has a line of
 * 64 bytes for each thread or child, with its number and its counts. */
#define GPU_DRIVER
#include "program.h"

#include "loop.h"

#include "lines.h"

#include <pthread.h>
#include <signal.h>

enum { AT_A_TIME = 8 };

static long calls;
static struct loop shared;

static void make_calls(struct line *line, struct loop *loop, long times, long number)
{
    atomic_store(&line->number, (uint64_t)number);
    for (long i = 0; times == 0 || i < times; i++) {
        /* A forked child may not use CUDA if its parent has used it, so this call may fail. The error is
         * ignored. */
        GPU(cuGraphLaunch)(loop->graph, loop->stream);
        count(&line->calls);
    }
}

static void *own_loop(void *argument)
{
    struct loop *loop = argument;
    gpu_use();
    make_calls(&lines[loop->in], loop, calls, gettid());
    return NULL;
}

static void *shared_loop(void *argument)
{
    gpu_use();
    make_calls(argument, &shared, calls, gettid());
    return NULL;
}

static pthread_t start(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, argument) != 0)
        exit(3);
    return thread;
}

static void run_loops(int threads)
{
    struct loop_options options = loop_defaults();
    struct loop *loops = calloc((size_t)threads, sizeof *loops);
    pthread_t *started = calloc((size_t)threads, sizeof *started);
    for (int i = 0; i < threads; i++) {
        loop_open(&loops[i], &options);
        loops[i].in = (uint64_t)i;
    }
    for (int i = 0; i < threads; i++)
        started[i] = start(own_loop, &loops[i]);
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
}

static void run_short(int threads)
{
    struct loop_options options = loop_defaults();
    pthread_t started[AT_A_TIME];
    loop_open(&shared, &options);
    for (int first = 0; first < threads; first += AT_A_TIME) {
        int some = threads - first < AT_A_TIME ? threads - first : AT_A_TIME;
        for (int i = 0; i < some; i++)
            started[i] = start(shared_loop, &lines[first + i]);
        for (int i = 0; i < some; i++)
            pthread_join(started[i], NULL);
    }
}

/* Half of the children are forked before the parent uses CUDA, so they can use CUDA themselves. */
static void run_forks(int children)
{
    struct loop_options options = loop_defaults();
    for (int i = 0; i < children; i++) {
        if (i == children / 2)
            loop_open(&shared, &options);
        if (i >= children / 2)
            make_calls(&lines[0], &shared, calls, getpid());
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            if (i < children / 2)
                loop_open(&shared, &options);
            make_calls(&lines[1 + i], &shared, calls + i, getpid());
            if (i % 3 == 0)
                _exit(0);
            exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            exit(4);
    }
    make_calls(&lines[0], &shared, calls, getpid());
}

int main(int argc, char **arguments)
{
    if (argc < 5)
        return 2;
    program_begin();
    lines_open(arguments[1]);
    int many = atoi(arguments[3]);
    calls = atol(arguments[4]);
    if (strcmp(arguments[2], "short") == 0)
        run_short(many);
    else if (strcmp(arguments[2], "forks") == 0)
        run_forks(many);
    else
        run_loops(many);
    printf("done\n");
    fflush(stdout);
    const char *end = argc > 5 ? arguments[5] : "return";
    if (strcmp(end, "_exit") == 0)
        _exit(7);
    if (strcmp(end, "crash") == 0)
        raise(SIGSEGV);
    if (strcmp(end, "kill") == 0)
        raise(SIGKILL);
    return 7;
}
