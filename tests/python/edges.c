/* Native threads, which Python does not know, that wait for the device again and again until the process has
 * ended. When a window opens or closes in such a thread, the library runs Python code in the thread, possibly
 * while the interpreter ends. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

int cudaSetDevice(int device);
int cudaDeviceSynchronize(void);

static atomic_ulong waits;

static void *loops(void *pause)
{
    for (;;) {
        cudaDeviceSynchronize();
        atomic_fetch_add(&waits, 1);
        if (pause != NULL)
            usleep((unsigned)(size_t)pause);
    }
    return NULL;
}

int begin(int threads)
{
    if (cudaSetDevice(0) != 0)
        return 1;
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        /* One thread in four waits without pauses; the other three pause between their waits, for 100 to 300
         * microseconds. */
        if (pthread_create(&thread, NULL, loops, (void *)(size_t)(i % 4 * 100)) != 0)
            return 2;
        pthread_detach(thread);
    }
    return 0;
}

/* Returns the number of waits that have returned. */
unsigned long waited(void) { return atomic_load(&waits); }
