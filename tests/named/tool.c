/* Another preloaded tool, which starts a thread before main, like nsys. With ASKS, the thread calls a function of
 * the program by name. */
#include <pthread.h>
#include <unistd.h>

#ifdef ASKS
long named_busy(long n);
#endif

static void *run(void *none)
{
#ifdef ASKS
    for (long n = 0;; n++)
        named_busy(n);
#endif
    for (;;)
        pause();
    return none;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    pthread_detach(thread);
}
