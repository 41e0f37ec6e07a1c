/* A library that is opened with RTLD_DEEPBIND. Its calls reach libc's dlsym directly, so its
 * look-ups cannot be intercepted. */
#define STANDIN_SOURCE
#include "standin_driver.h"

#include <dlfcn.h>
#include <stdlib.h>

void launch_past(CUfunction kernel, CUdeviceptr buffer, CUstream stream)
{
    static __typeof__(&cuLaunchKernel) launch;
    void *params[] = {&buffer};
    if (launch == NULL)
        launch = (__typeof__(launch))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
    for (int i = 0; i < 30; i++)
        if (launch == NULL || launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL) != 0)
            exit(3);
}
