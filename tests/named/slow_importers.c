/* A thread loads libraries whose relocation takes a while. Once such a library is in the loader's list, the main thread
 * looks up a symbol. */
#include "program.h"

#include "loop.h"

#include <link.h>
#include <pthread.h>
#include <stdatomic.h>

enum { LIBRARIES = 2 };

static const char *names[LIBRARIES] = {"slow_importer0.so", "slow_importer1.so"};
static atomic_int loads;

static void *load_and_run(void *nothing)
{
    (void)nothing;
    long sum = 0;
    for (int n = 0; n < LIBRARIES; n++) {
        atomic_store(&loads, n + 1);
        void *importer = open_beside(names[n], RTLD_LAZY);
        long (*run)(long) = (long (*)(long))find(importer, "importer_run");
        sum = sum * 3 + run(n) + run(-n);
    }
    return (void *)sum;
}

static int is_it(struct dl_phdr_info *module, size_t size, void *name)
{
    (void)size;
    return strstr(module->dlpi_name, name) != NULL;
}

int main(void)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    pthread_t thread;
    pthread_create(&thread, NULL, load_and_run, NULL);
    for (int n = 0; n < LIBRARIES; n++) {
        while (atomic_load(&loads) <= n || !dl_iterate_phdr(is_it, (void *)names[n]))
            usleep(1000);
        dlsym(RTLD_DEFAULT, "lent_step");
    }
    void *sum;
    pthread_join(thread, &sum);
    loop_step(&loop, 0);
    printf("sum %lu checksum %016llx calls %d\n", (unsigned long)sum, (unsigned long long)loop_close(&loop), LIBRARIES * 4);
    return 0;
}
