/* A library with its own copy of NVTX, as NVTX is a header-only library that each module compiles in. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

int module_push(int n)
{
    char name[32];
    snprintf(name, sizeof name, "step %d", n);
    return nvtxRangePushA(name);
}

int module_pop(void)
{
    return nvtxRangePop();
}
