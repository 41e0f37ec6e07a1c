/* A library that is loaded and unloaded. */
static long calls;

__attribute__((visibility("default"), noinline)) long plugin_step(long n)
{
    calls++;
    return n * 3 + calls;
}
