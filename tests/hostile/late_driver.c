/* The program's very first CUDA call waits for the device, and loads the driver first. */
#include "hostile.h"

static struct loop loop;

int main(void)
{
    hostile_begin();
    GPU_CHECK(cudaDeviceSynchronize());
    open_default(&loop);
    make_steps(&loop, 8);
    gpu_wait_device();
    print_result(&loop);
    return 0;
}
