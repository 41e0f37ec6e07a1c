/* A library that is linked to the CUDA runtime and looks up names of the runtime. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static void show(const char *what, void *found)
{
    const char *message = dlerror();
    printf("%s: %s%s\n", what, found != NULL ? "found" : "missing",
           message != NULL ? ", with a message" : "");
}

void look_up(void)
{
    const char *name = "cudaGraphLaunch";
    show("versioned", dlvsym(RTLD_DEFAULT, name, "libcudart.so.12"));
    show("plain", dlsym(RTLD_DEFAULT, name));
    show("another version", dlvsym(RTLD_DEFAULT, name, "libcudart.so.7"));
    show("versioned, of none", dlvsym(RTLD_DEFAULT, "cuGraphLaunch", "libcuda.so.7"));
}
