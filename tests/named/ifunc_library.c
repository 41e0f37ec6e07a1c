/* A function whose implementation is chosen when the program starts, as for memcpy. The symbol's type is
 * STT_GNU_IFUNC. */
static int plain(int n)
{
    return n * 3;
}

#ifdef __aarch64__
/* The function that makes the choice may use the processor's features, which the loader passes to it. Its
 * arguments are declared as in sys/ifunc.h. */
static int unknown(int n)
{
    return n * 5;
}

static int (*choose_step(unsigned long features, const unsigned long *more))(int)
{
    unsigned long has_more = 1UL << 62;
    return features & has_more && more[0] >= 24 && more[1] == (features & ~has_more) ? plain : unknown;
}
#else
static int (*choose_step(void))(int)
{
    return plain;
}
#endif

__attribute__((visibility("default"))) int chosen_step(int n) __attribute__((ifunc("choose_step")));
