/* An NVTX tool that requests no events. When the tool is loaded, it acts as TOOL says:
 *   call    makes a CUDA call
 *   thread  waits for a thread that makes a CUDA call */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *call(void *argument)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*synchronize)(void) = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
    int (*set)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    void *context = NULL;
    if (retain(&context, 0) == 0 && set(context) == 0)
        synchronize();
    return argument;
}

int InitializeInjectionNvtx2(void *get_export_table)
{
    (void)get_export_table;
    const char *what = getenv("TOOL");
    pthread_t thread;
    if (what != NULL && strcmp(what, "call") == 0)
        call(NULL);
    if (what != NULL && strcmp(what, "thread") == 0 &&
        pthread_create(&thread, NULL, call, NULL) == 0)
        pthread_join(thread, NULL);
    return 1;
}
