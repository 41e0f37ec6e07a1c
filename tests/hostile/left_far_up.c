/* Leaves every second launch by a longjmp from within the driver. The next launch comes from a call below a
 * large frame that is not written to. So the stack still has the data of the launch that the longjmp left. */
#include "hostile.h"

#include <setjmp.h>

enum { ROUNDS = 12, LARGE = 1 << 14 };

static struct loop loop;
static jmp_buf back;
static bool armed;

static void on_call(const char *function)
{
    if (!armed || strcmp(function, "cuGraphLaunch") != 0)
        return;
    armed = false;
    longjmp(back, 1);
}

__attribute__((noinline)) static void step_far_down(int n)
{
    char large[LARGE];
    __asm__ volatile("" : : "r"(large) : "memory");
    loop_step(&loop, n);
    __asm__ volatile("" : : "r"(large) : "memory");
}

int main(void)
{
    hostile_begin();
    open_default(&loop);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == NULL)
        return 3;
    ((void (*)(void (*)(const char *)))find(driver, "standin_set_callback"))(on_call);
    volatile int left = 0;
    for (volatile int n = 0; n < ROUNDS; n = n + 1) {
        armed = true;
        if (setjmp(back) == 0)
            gpu_launch_graph(loop.graph, loop.stream);
        else
            left = left + 1;
        step_far_down(n);
    }
    printf("left: %d\n", left);
    print_result(&loop);
    return 0;
}
