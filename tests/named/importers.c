/* Four threads each load, use and unload a different library at the same time, while the main thread loads and
 * unloads other libraries. */
#include "program.h"

#include "loop.h"

#include <pthread.h>

enum { THREADS = 4, TIMES = 150 };

static void *load_and_run(void *index)
{
    char name[32];
    long sum = 0;
    snprintf(name, sizeof name, "importer%ld.so", (long)index);
    for (long n = 0; n < TIMES; n++) {
        void *importer = open_beside(name, n % 2 ? RTLD_NOW : RTLD_LAZY);
        long (*run)(long) = (long (*)(long))find(importer, "importer_run");
        sum = sum * 3 + run(n) + run(-n);
        dlclose(importer);
    }
    return (void *)sum;
}

int main(void)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, load_and_run, (void *)n);
    unsigned long sum = 0;
    for (int n = 0; n < THREADS; n++) {
        void *one;
        pthread_join(threads[n], &one);
        sum = sum * 31 + (unsigned long)one;
    }
    loop_step(&loop, 0);
    printf("sum %lu checksum %016llx calls %d\n", sum, (unsigned long long)loop_close(&loop), THREADS * TIMES * 4);
    return 0;
}
