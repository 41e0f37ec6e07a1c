/* A function that is chosen when the program starts, as memcpy is. */
static int plain(int n)
{
    return n * 3;
}

static int (*choose_step(void))(int)
{
    return plain;
}

__attribute__((visibility("default"))) int chosen_step(int n) __attribute__((ifunc("choose_step")));
