/* Looks for CUDA like a program that can work without it, and prints the results. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    static const char *const NAMES[] = {"cudaGraphLaunch", "cuGraphLaunch", "cuLaunchKernel",
                                        "cuGetProcAddress_v2", "cuInit", NULL};
    void *self = dlopen(NULL, RTLD_NOW);
    for (int i = 0; NAMES[i] != NULL; i++) {
        printf("%s: %d %d %d", NAMES[i], dlsym(RTLD_DEFAULT, NAMES[i]) != NULL,
               dlsym(self, NAMES[i]) != NULL, dlsym(RTLD_NEXT, NAMES[i]) != NULL);
        printf(" %s\n", dlerror() != NULL ? "with a message" : "without a message");
    }
    return 0;
}
