/* A program that waits for the GPU by asking again and again whether work is done. Each of its 300 steps launches three
 * kernels. The first argument is how it asks: `event` or `stream`; with `driver` as the second one, it asks the driver. */
#include "gpu.h"

#include <string.h>

enum { STEPS = 300, KERNELS = 3 };

int cuEventQuery(void *event);
int cuStreamQuery(void *stream);

int main(int count, char **arguments)
{
    int by_event = count > 1 && strcmp(arguments[1], "event") == 0;
    int by_driver = count > 2 && strcmp(arguments[2], "driver") == 0;
    gpu_use();
    gpu_buffer buffer = gpu_allocate(64);
    gpu_stream stream = gpu_stream_create();
    gpu_event event = gpu_event_create();
    long steps = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int kernel = 0; kernel < KERNELS; kernel++)
            gpu_launch_kernel(buffer, stream);
        gpu_record(event, stream);
        int result;
        do {
            if (by_driver)
                result = by_event ? cuEventQuery(event) : cuStreamQuery(stream);
            else
                result = by_event ? (int)cudaEventQuery(event) : (int)cudaStreamQuery(stream);
        } while (result == 600);
        if (result != 0)
            return 3;
        steps++;
    }
    printf("%ld steps\n", steps);
    return 0;
}
