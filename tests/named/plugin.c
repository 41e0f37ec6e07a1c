/* A library that plugin_host.c loads and unloads. */
static long calls;

__attribute__((visibility("default"), noinline)) long plugin_step(long n)
{
    calls++;
    return n * 3 + calls;
}
