/* A function that compares its own address, as OpenSSL's allocator does. */
long self_step(long n);
static long (*volatile implementation)(long) = self_step;

__attribute__((visibility("default"), noinline)) long self_step(long n)
{
    return implementation != self_step ? implementation(n) : n * 3;
}
