/* Repeatedly opens plugin.so, calls its function and closes it. With a second argument, another thread runs
 * meanwhile. */
#include "program.h"

#include "loop.h"

#include <pthread.h>

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

static void *wait_a_while(void *none)
{
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return none;
}

int main(int count, char **words)
{
    program_begin();
    int times = count > 1 ? atoi(words[1]) : 1;
    pthread_t thread;
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    pthread_mutex_lock(&held);
    if (count > 2)
        pthread_create(&thread, NULL, wait_a_while, NULL);
    long sum = 0, calls = 0;
    for (int n = 0; n < times; n++) {
        void *plugin = open_beside("plugin.so", RTLD_NOW | RTLD_LOCAL);
        long (*step)(long) = (long (*)(long))find(plugin, "plugin_step");
        for (int i = 0; i < 3; i++, calls++)
            sum += step(n);
        /* dlvsym, which looks up a symbol with a version, must also find the function. */
        if (n == 0 && dlvsym(plugin, "plugin_step", "NONE") != NULL)
            sum++;
        dlclose(plugin);
    }
    pthread_mutex_unlock(&held);
    if (count > 2)
        pthread_join(thread, NULL);
    loop_step(&loop, 0);
    printf("sum %ld checksum %016llx calls %ld\n", sum, (unsigned long long)loop_close(&loop), calls);
    return 0;
}
