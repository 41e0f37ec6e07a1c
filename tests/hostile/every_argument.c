/* Calls a function with the name of a driver function. The function's arguments use all argument
 * registers and the stack, and its result is a structure. The function is called through linking
 * and through a look-up. */
#define _GNU_SOURCE
#include "every_argument.h"

#include <dlfcn.h>
#include <stdio.h>

static void call(const char *how, launch_t *launch, long n)
{
    struct large large = launch(n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 0.5, n + 1.5,
                                n + 2.5, n + 3.5, n + 4.5, n + 5.5, n + 6.5, n + 7.5, n + 8, n + 9,
                                n + 8.5, n + 9.5);
    printf("%s:", how);
    for (int i = 0; i < 12; i++)
        printf(" %ld", large.integers[i]);
    for (int i = 0; i < 10; i++)
        printf(" %.1f", large.doubles[i]);
    printf("\n");
}

int main(void)
{
    launch_t *found = (launch_t *)dlsym(RTLD_DEFAULT, "cuGraphLaunch");
    if (found == NULL)
        return 3;
    for (long n = 0; n < 4; n++) {
        call("linked", cuGraphLaunch, 100 * n);
        call("found", found, 100 * n + 50);
    }
    return 0;
}
