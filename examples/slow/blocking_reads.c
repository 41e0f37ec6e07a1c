/* An example that suffers from reads in the middle of each step: four times, the host reads four bytes from the GPU
 * (a .item() in PyTorch), and then computes with them.
 *
 *   cc -O2 blocking_reads.c -o blocking_reads -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize/4 -- ./blocking_reads
 */
#include "gpu.h"

enum { STEPS = 30, READS = 4, KERNEL_NS = 1000000, THINKS_NS = 2000000 };

int main(void)
{
    gpu_start(0);
    unsigned long long buffer = gpu_allocate(64);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < READS; i++) {
            int found;
            gpu_launch(KERNEL_NS);
            gpu_wait();
            gpu_copy_out(&found, buffer, sizeof found);
            host_works(THINKS_NS);
        }
    }
}
