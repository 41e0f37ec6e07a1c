/* constructor_waits [first]: the constructor of constructor_waits_library.so waits for a thread
 * that makes 8 steps, while the loader holds its lock. With `first`, that thread makes the
 * program's first launches. */
#include "hostile.h"

struct loop shared_loop;

int main(int argc, char **argv)
{
    (void)argv;
    hostile_begin();
    struct loop_options options = loop_defaults();
    if (argc > 1) {
        options.graphs = 0;
        options.kernels = 1;
    }
    loop_open(&shared_loop, &options);
    open_beside("constructor_waits_library.so", RTLD_NOW | RTLD_GLOBAL);
    print_result(&shared_loop);
    return 0;
}
