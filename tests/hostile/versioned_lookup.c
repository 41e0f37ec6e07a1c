/* Opens a library with RTLD_LOCAL, and calls its function, which looks up names that only the
 * library's own dependencies define. */
#include "hostile.h"

int main(void)
{
    hostile_begin();
    void *library = open_beside("versioned_lookup_library.so", RTLD_NOW | RTLD_LOCAL);
    ((void (*)(void))find(library, "look_up"))();
    return 0;
}
