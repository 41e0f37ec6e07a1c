/* Opens NVTX ranges in a process that never uses CUDA and that ends by _exit. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    for (int n = 0; n < 10; n++) {
        nvtxRangePushA("step");
        nvtxRangePop();
    }
    puts("done");
    fflush(stdout);
    _exit(3);
}
