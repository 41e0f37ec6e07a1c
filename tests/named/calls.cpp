/* Calls all functions of shapes.h in rounds with one graph launch each. Prints their result and the number of calls.
 * The order of calls is the same in every run. With --threads, eight threads make the calls. */
#include "program.h"

#include "loop.h"
#include "shapes.h"
#ifdef ALONE
#include "shapes.cpp"
#endif

#include <stdexcept>
#include <thread>
#include <vector>

static uint64_t mix(uint64_t sum, uint64_t value)
{
    return (sum ^ value) * UINT64_C(0x9e3779b97f4a7c15) + (sum >> 29);
}

static WIDE uint64_t wide_round(uint64_t sum, int n)
{
    const double values[] = {2, 3, 4, 5, 6.5, 7, 8.25, 9};
    wide a, b;
    for (int i = 0; i < WIDTH; i++)
        a[i] = values[i] * n, b[i] = values[i + WIDTH];
    wide c = named_wide(a, b);
    double live = n * 0.125;
    c = named_wide(c, b);
    for (int i = 0; i < WIDTH; i++)
        sum = mix(sum, (uint64_t)(int64_t)(c[i] * 16 + live));
    return sum;
}

static __attribute__((noinline)) uint64_t jump_round(uint64_t sum, int n)
{
    jmp_buf where;
    volatile uint64_t kept = sum;
    int value = setjmp(where);
    if (value == 0)
        named_jumps(&where, n);
    return mix(kept, (uint64_t)value);
}

/* Makes one round of calls. The compiler keeps these local variables in registers across the calls, so the
 * result is wrong if a hook changes such a register. */
static uint64_t one_round(uint64_t sum, int n)
{
    deep::Engine engine;
    uint64_t (*const volatile pointer)(uint64_t, int) = jump_round;
    int64_t (*const volatile args)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double, float) = named_args;
    sum = mix(sum, (uint64_t)args(n, 2, 3, 4, 5, 6, 7, 8.5, 9.25f));
    sum = mix(sum, (uint64_t)named_varargs(6, (int64_t)n, 1.5, INT64_C(77), 2.25, (int64_t)sum, 1e3));
    Small small = named_small(n, n * 0.5);
    sum = mix(sum, (uint64_t)small.whole + (uint64_t)(small.part * 64));
    for (int64_t word : named_large(n).words)
        sum = mix(sum, (uint64_t)word);
    for (double part : named_spread(n, 1.5, n + 2, 3, 4, n * 0.5, 6, 7).parts)
        sum = mix(sum, (uint64_t)(int64_t)(part * 2));
    sum = mix(sum, (uint64_t)(named_long_double(n + 0.5L, 3) * 1000));
    __int128 wide_int = named_int128((__int128)n << 70, sum);
    sum = mix(mix(sum, (uint64_t)wide_int), (uint64_t)(wide_int >> 64));
    sum = mix(sum, (uint64_t)named_fibonacci(7));
    for (int i = 0; i < 4; i++)
        try {
            sum = mix(sum, (uint64_t)named_throws(n + i));
        } catch (const std::runtime_error &error) {
            sum = mix(sum, (uint64_t)error.what()[0]);
        }
    sum = mix(sum, (uint64_t)named_tail(n, 5));
    sum = pointer(sum, n);
    sum = pointer(sum, n + 1);
    std::string text = named_string("round ", n);
    sum = mix(sum, text.size() + (unsigned char)text.back());
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx"))
#endif
        sum = wide_round(sum, n);
    sum = mix(sum, (uint64_t)engine.named_step(n) + (uint64_t)engine.named_step(n * 0.25));
    sum = mix(sum, (uint64_t)engine.named_add(n, 3) + (uint64_t)engine.named_add(n * 1.0, 0.5));
    return sum;
}

int main(int count, char **words)
{
    program_begin();
    bool threaded = count > 1 && strcmp(words[1], "threads") == 0;
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    std::vector<uint64_t> sums(threaded ? 8 : 1);
    auto work = [&](size_t index) {
        for (int n = 0; n < 200; n++)
            sums[index] = one_round(sums[index], n + (int)index);
    };
    std::vector<std::thread> threads;
    for (size_t index = 1; index < sums.size(); index++)
        threads.emplace_back(work, index);
    work(0);
    for (std::thread &thread : threads)
        thread.join();
    for (int n = 0; n < 3; n++)
        loop_step(&loop, n);
    for (uint64_t sum : sums)
        printf("%016llx\n", (unsigned long long)sum);
    /* Each call of named_fibonacci(7) makes 40 recursive calls. They stay within the library, so
     * they do not count as calls from outside. */
    long recursive = (long)sums.size() * 200 * 40;
    printf("checksum %016llx outside %ld calls %ld\n", (unsigned long long)loop_close(&loop),
           named_calls.load() - recursive, named_calls.load());
    return 7;
}
