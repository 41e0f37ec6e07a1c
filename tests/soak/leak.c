/* A library to preload that leaks memory and a descriptor in each dlclose. It tests that the soak test notices
 * leaks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOST = 65536 };

int dlclose(void *handle)
{
    int (*real)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "dlclose");
    volatile char *lost = malloc(LOST);
    if (lost == NULL || dup(0) < 0)
        abort();
    for (int i = 0; i < LOST; i += 1024)
        lost[i] = 1;
    return real(handle);
}
