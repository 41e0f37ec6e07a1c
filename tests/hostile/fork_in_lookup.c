/* Forks a hundred children, one after the other, while a thread looks up CUDA functions. Each
 * child opens and closes a library. */
#include "hostile.h"

static void *look_up(void *driver)
{
    for (;;)
        if (dlsym(driver, "cuGraphLaunch") == NULL)
            return NULL;
}

int main(void)
{
    hostile_begin();
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    start_thread(look_up, driver);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(TIMEOUT_SECONDS / 3);
            void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
            void *found = dlsym(driver, "cuGraphLaunch");
            if (library != NULL)
                dlclose(library);
            _exit(found != NULL ? 0 : 1);
        }
        int status = wait_for(child);
        if (status != 0) {
            printf("a child ended with %d\n", status);
            _exit(1);
        }
    }
    puts("all children ended");
    fflush(stdout);
    _exit(0);
}
