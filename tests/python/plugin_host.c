/* plugin_host PLUGIN MODE LIBPYTHON: loads a plugin that embeds Python. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *plugin = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (plugin == NULL) {
        printf("%s\n", dlerror());
        return 2;
    }
    void (*run)(const char *, const char *) = (void (*)(const char *, const char *))dlsym(plugin, "run_plugin");
    run(argv[2], argv[3]);
    return 7;
}
