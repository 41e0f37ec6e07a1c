/* A function that ends with a jump to dlopen. Therefore dlopen's return address is in the program, and dlopen
 * searches the program's RUNPATH, which has the plugin's folder. */
#include "program.h"

#include "standin.h"

__attribute__((noinline)) void *open_step(const char *name)
{
    return dlopen(name, RTLD_NOW);
}

int main(void)
{
    program_begin();
    cudaFree(NULL);
    int found = 0;
    for (int n = 0; n < 10; n++) {
        void *plugin = open_step("libhidden.so");
        found += plugin != NULL;
        if (plugin != NULL)
            dlclose(plugin);
        cudaDeviceSynchronize();
    }
    printf("found %d calls 10\n", found);
    return 0;
}
