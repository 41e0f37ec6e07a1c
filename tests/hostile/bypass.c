/* A program that loads a CUDA library in a way in which its calls bypass preloaded libraries
 * (dlmopen or RTLD_DEEPBIND), or that loads the driver without using it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    const char *how = words[1];
    if (strcmp(how, "loads") == 0 || strcmp(how, "initialises") == 0) {
        void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
        if (driver == NULL || dlopen("libcuda.so.1", RTLD_NOW) == NULL)
            return 1;
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
        return strcmp(how, "loads") == 0 ? 0 : init(0);
    }
    const char *plugin = count > 2 ? words[2] : "";
    void *handle = strcmp(how, "dlmopen") == 0 ? dlmopen(LM_ID_NEWLM, plugin, RTLD_NOW)
                                               : dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int (*run)(int) = (int (*)(int))dlsym(handle, "run");
    return run(20);
}
