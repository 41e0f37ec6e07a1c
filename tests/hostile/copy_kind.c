/* Makes eight copies to the host and four to the device. The kind of a copy is a 32-bit
 * argument. Its register has random bits in the upper half, as compilers may leave them. */
#include <stdint.h>
#include <stdio.h>

#include "standin.h"

int main(void)
{
    typedef int (*copy_async)(void *, const void *, size_t, uint64_t, cudaStream_t);
    copy_async copy = (copy_async)(void *)cudaMemcpyAsync;
    const uint64_t upper = UINT64_C(0xdeadbeef00000000);
    int from = 1, to = 0, sum = 0;
    for (int n = 0; n < 12; n++) {
        uint64_t kind = upper | (n < 4 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
        from += n;
        if (copy(&to, &from, sizeof to, kind, NULL) != 0)
            return 3;
        sum += to;
    }
    printf("sum %d\n", sum);
    return 0;
}
