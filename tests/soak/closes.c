/* closes TICKETS SECONDS: for each ticket, opens a plugin that uses CUDA, makes two steps with it, and closes the
 * plugin together with its runtime. Plugins of two runtimes take turns. */
#include "pace.h"

#include "loop_options.h"

enum { STEPS = 2 };

int main(int argc, char **argv)
{
    static const char *const PLUGINS[] = {"soak12.so", "soak13.so"};
    pace_begin(argc, argv);
    for (long ticket; (ticket = pace_next()) >= 0;) {
        void *plugin = dlopen(PLUGINS[ticket % 2], RTLD_NOW | RTLD_LOCAL);
        if (plugin == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 3;
        }
        const struct loop_calls *calls = (const struct loop_calls *)find(plugin, "plugin_loop");
        struct loop_options options = loop_defaults();
        void (*step)(void *, int) = (void (*)(void *, int))find(plugin, "soak_step");
        void *loop = calls->open(&options);
        for (int n = 0; n < STEPS; n++)
            step(loop, n);
        calls->close(loop);
        if (dlclose(plugin) != 0)
            return 3;
    }
    return 0;
}
