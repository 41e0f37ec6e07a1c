/* A library that is linked to the driver. The program does not look up its function: the
 * constructor passes the address in an environment variable. */
#define STANDIN_SOURCE
#include "standin_driver.h"

#include <stdio.h>
#include <stdlib.h>

static void load(const void *image)
{
    CUmodule module;
    if (cuModuleLoadData(&module, image) != CUDA_SUCCESS)
        exit(3);
}

__attribute__((constructor)) static void hands_over(void)
{
    char address[32];
    snprintf(address, sizeof address, "%p", (void *)load);
    setenv("LATE_LOAD", address, 1);
}
