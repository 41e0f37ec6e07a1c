/* A library that works like cuDNN 9: its functions look up functions of the same names in a library that it opens,
 * and call them. Each function adds 100 to the caller's result. */
#define _GNU_SOURCE
#include "dispatcher.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int function(int *result, void *none);

static __thread int depth;

static void *engine(void)
{
    static void *opened;
    if (opened == NULL) {
        Dl_info here;
        char path[4096];
        dladdr((void *)engine, &here);
        snprintf(path, sizeof path, "%.*s/dispatcher_engine.so", (int)(strrchr(here.dli_fname, '/') - here.dli_fname),
                 here.dli_fname);
        opened = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    }
    return opened;
}

static int pass_on(const char *name, int *result, void *none)
{
    function *real = (function *)dlsym(engine(), name);
    if (real == NULL || ++depth > 1) {
        fprintf(stderr, "%s: %s\n", name, real == NULL ? "not found" : "came back to where it was looked up");
        _exit(9);
    }
    *result += 100;
    int returned = real(result, none);
    depth--;
    return returned;
}

#define X(name)                              \
    int name(int *result, void *none)        \
    {                                        \
        return pass_on(#name, result, none); \
    }
NAMES(X)
