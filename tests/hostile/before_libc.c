/* Looks up a function before the C library has been initialised, when there are no environment variables yet. Then
 * makes some steps. */
#include "hostile.h"

static struct loop loop;
static int found;

static void look_up(void)
{
    found = dlsym(RTLD_DEFAULT, "cudaGraphLaunch") != NULL && dlsym(RTLD_NEXT, "getppid") != NULL;
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = look_up;

int main(void)
{
    hostile_begin();
    printf("%s\n", found ? "found" : "not found");
    open_default(&loop);
    make_steps(&loop, 8);
    print_result(&loop);
    return 0;
}
