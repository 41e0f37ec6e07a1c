/* An example that suffers from page faults: each step maps new host memory for its work space, and the
 * operating system provides every page, cleared, when it is first used. A buffer that is kept would cause no page
 * faults.
 *
 *   cc -O2 page_faults.c -o page_faults -ldl
 *   tllmprof run --window 5-24 --step cuStreamSynchronize -- ./page_faults
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <string.h>
#include <sys/mman.h>

enum { STEPS = 30, KERNEL_NS = 3000000, WORK_SPACE = 128 << 20, PAGE = 4096 };

int main(void)
{
    gpu_start(0);
    for (int step = 0; step < STEPS; step++) {
        char *space = mmap(NULL, WORK_SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (space == MAP_FAILED)
            return 1;
        madvise(space, WORK_SPACE, MADV_NOHUGEPAGE);
        for (size_t at = 0; at < WORK_SPACE; at += PAGE)
            space[at] = 1;
        munmap(space, WORK_SPACE);
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
}
