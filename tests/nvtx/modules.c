/* Makes steps. The libraries that are given as arguments take turns to open the step's range. */
#include "loop.h"

#include <dlfcn.h>

int main(int argc, char **argv)
{
    use_cuda();
    for (int n = 0; n < 40; n++) {
        void *library = dlopen(argv[1 + n % (argc - 1)], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        int (*push)(int) = (int (*)(int))dlsym(library, "module_push");
        int (*pop)(void) = (int (*)(void))dlsym(library, "module_pop");
        int pushed = push(n);
        work();
        int popped = pop();
        launch();
        printf("%d %d\n", pushed, popped);
    }
    return 0;
}
