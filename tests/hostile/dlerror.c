/* dlerror() holds a message that the program has not read yet, while windows open and close. The
 * message must not be lost. */
#include "hostile.h"

static struct loop loop;

int main(void)
{
    hostile_begin();
    open_default(&loop);
    dlerror();
    dlopen("/no/such.so", RTLD_NOW);
    make_steps(&loop, 8);
    const char *message = dlerror();
    printf("%s\n", message != NULL ? message : "nothing");
    printf("%s\n", dlerror() != NULL ? "one more" : "no more");
    return 0;
}
