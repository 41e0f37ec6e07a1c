// Times short processes, from spawn to end: startup RUNS LIBRARY EMPTY -- COMMAND…
// Each of the RUNS turns runs COMMAND three times: without a preloaded library, with the library EMPTY preloaded, and
// with LIBRARY preloaded. Prints one JSON object with three values for each of these three ways:
// - the median time in nanoseconds;
// - the median difference, in nanoseconds, between this time and the time without a preloaded library in the same turn.
//   The difference varies less than the time if the speed of the machine drifts;
// - the largest resident set in KiB.
// This program is small and written in C, because a child's largest resident set includes that of the process that
// spawned it.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { WAYS = 3, MAX_RUNS = 5000 };
extern char **environ;
static double took[WAYS][MAX_RUNS], over[WAYS][MAX_RUNS];
static long resident[WAYS];

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 6 || strcmp(argv[4], "--")) {
        fputs("usage: startup RUNS LIBRARY EMPTY -- COMMAND...\n", stderr);
        return 2;
    }
    int runs = atoi(argv[1]);
    if (runs < 1 || runs > MAX_RUNS) return 2;
    const char *preload[WAYS] = { 0, argv[3], argv[2] };
    char setting[4096];
    for (int run = 0; run < runs; run++)
        for (int turn = 0; turn < WAYS; turn++) {
            int way = (run + turn) % WAYS, status;
            unsetenv("LD_PRELOAD");
            if (preload[way]) {
                snprintf(setting, sizeof setting, "LD_PRELOAD=%s", preload[way]);
                putenv(setting);
            }
            struct rusage use;
            pid_t child;
            double from = now_ns();
            if (posix_spawnp(&child, argv[5], 0, 0, argv + 5, environ)) return 1;
            while (wait4(child, &status, 0, &use) < 0) {}
            took[way][run] = now_ns() - from;
            if (status) {
                fprintf(stderr, "startup: %s ended with status %d\n", argv[5], status);
                return 1;
            }
            if (use.ru_maxrss > resident[way]) resident[way] = use.ru_maxrss;
        }
    for (int way = 0; way < WAYS; way++)
        for (int run = 0; run < runs; run++) over[way][run] = took[way][run] - took[0][run];
    const char *name[WAYS] = { "without", "empty", "with" };
    printf("{");
    for (int way = 0; way < WAYS; way++) {
        qsort(took[way], runs, sizeof took[way][0], ascending);
        qsort(over[way], runs, sizeof over[way][0], ascending);
        printf("%s\"%s\": {\"ns\": %.0f, \"over_ns\": %.0f, \"max_rss_kib\": %ld}", way ? ", " : "", name[way],
               took[way][runs / 2], over[way][runs / 2], resident[way]);
    }
    printf("}\n");
    return 0;
}
