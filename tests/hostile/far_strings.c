/* A program that is linked without start files, with its dynamic string table far from its
 * symbol table. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

#ifdef __x86_64__
__attribute__((force_align_arg_pointer))
#endif
void _start(void)
{
    void *found = dlsym(RTLD_DEFAULT, "cudaGraphLaunch");
    _exit(found == NULL ? 6 : 5);
}
