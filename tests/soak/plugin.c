/* The plugin of closes.c, with a function that a `sym:` rule can name. */
#include "../fixtures/plugin.c"

void soak_step(void *loop, int n);
void soak_step(void *loop, int n)
{
    plugin_loop.step(loop, n);
}
