/* A function whose code compares its own address with that of the active implementation, as OpenSSL's allocator
 * does. A hook must not change the result. */
long self_step(long n);
static long (*volatile implementation)(long) = self_step;

__attribute__((visibility("default"), noinline)) long self_step(long n)
{
    return implementation != self_step ? implementation(n) : n * 3;
}
