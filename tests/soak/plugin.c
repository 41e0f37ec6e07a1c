/* The plugin of closes.c, with a function for a `sym:` rule. */
#include "../fixtures/plugin.c"

void soak_step(void *loop, int n);
void soak_step(void *loop, int n)
{
    plugin_loop.step(loop, n);
}
