/* A program that is linked to the library dispatcher.c. It looks up that library's functions in every possible
 * way, and calls them. */
#define _GNU_SOURCE
#include "dispatcher.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int function(int *result, void *none);

#define X(name) function name;
NAMES(X)
#undef X

static const struct { const char *name; function *linked; } ALL[] = {
#define X(name) {#name, name},
    NAMES(X)
#undef X
};

static void call(const char *how, void *found)
{
    int result = 0;
    if (found == NULL)
        printf(" %s: none%s", how, dlerror() != NULL ? ", with a reason" : "");
    else if (((function *)found)(&result, NULL) == 0)
        printf(" %s: %d", how, result);
}

int main(void)
{
    alarm(200);
    void *all = dlopen(NULL, RTLD_LAZY);
    void *dispatcher = dlopen("dispatcher.so", RTLD_LAZY | RTLD_NOLOAD);
    void *stranger = dlopen("libm.so.6", RTLD_LAZY);
    if (all == NULL || dispatcher == NULL || stranger == NULL)
        return 3;
    for (int round = 0; round < 3; round++)
        for (size_t n = 0; n < sizeof ALL / sizeof *ALL; n++) {
            const char *name = ALL[n].name;
            printf("%s:", name);
            call("linked", (void *)ALL[n].linked);
            call("default", dlsym(RTLD_DEFAULT, name));
            call("next", dlsym(RTLD_NEXT, name));
            call("all", dlsym(all, name));
            call("its library", dlsym(dispatcher, name));
            call("another library", dlsym(stranger, name));
            call("another version", dlvsym(dispatcher, name, "NONE_1"));
            void *engine = dlopen("dispatcher_engine.so", RTLD_LAZY | RTLD_NOLOAD);
            if (engine == NULL)
                return 4;
            call("the library behind it", dlsym(engine, name));
            printf("\n");
        }
    return 5;
}
