/* Prints errno and dlerror() before the program has done anything else. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

int main(void)
{
    int first = errno;
    const char *error = dlerror();
    printf("errno %d, %s\n", first, error ? error : "no error of dlopen's");
    return 6;
}
