/* The first CUDA call of all, which loads the driver, waits for the device. */
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
