/* The program's first CUDA call is a wait for the device. The driver is loaded just before that call. */
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
