#include "shapes.h"

#include <stdexcept>

std::atomic<long> named_calls;

static inline void counted()
{
    named_calls.fetch_add(1, std::memory_order_relaxed);
}

NAMED int64_t named_args(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, double h, float i)
{
    counted();
    return a + 3 * b + 5 * c + 7 * d + 11 * e + 13 * f + 17 * g + (int64_t)(h * 19) + (int64_t)(i * 23);
}

NAMED int64_t named_varargs(int count, ...)
{
    counted();
    va_list list;
    va_start(list, count);
    int64_t sum = 0;
    for (int n = 0; n < count; n++)
        sum = sum * 31 + (n % 2 ? (int64_t)(va_arg(list, double) * 8) : va_arg(list, int64_t));
    va_end(list);
    return sum;
}

NAMED Small named_small(int64_t whole, double part)
{
    counted();
    return {whole * 3 + 1, part * 0.5 + 1};
}

NAMED Large named_large(int64_t seed)
{
    counted();
    Large large;
    for (int n = 0; n < 9; n++)
        large.words[n] = seed = seed * 6364136223846793005 + n;
    return large;
}

NAMED Spread named_spread(double a, double b, double c, double d, double e, double f, double g, double h)
{
    counted();
    return {{a * 2 + h, b * 3 + g, c * 5 + f, d * 7 + e}};
}

NAMED long double named_long_double(long double x, int n)
{
    counted();
    return x / 3 + n;
}

NAMED __int128 named_int128(__int128 x, uint64_t y)
{
    counted();
    return x * 1000003 + y;
}

NAMED int named_fibonacci(int n)
{
    counted();
    /* Without the volatile pointer, the compiler would turn some of the recursive calls into a loop. */
    int (*volatile self)(int) = named_fibonacci;
    return n < 2 ? n : self(n - 1) + self(n - 2);
}

NAMED int named_throws(int n)
{
    counted();
    std::string local(100, 'x');
    if (n % 3 == 0)
        throw std::runtime_error(std::to_string(n));
    return n + (int)local.size();
}

static __attribute__((noinline)) int behind(int n, int sum)
{
    return n * 7 + sum;
}

NAMED int named_tail(int n, int sum)
{
    counted();
    return behind(n, sum + 1);
}

NAMED void named_jumps(jmp_buf *where, int n)
{
    counted();
    if (n % 2)
        longjmp(*where, n);
}

NAMED std::string named_string(const std::string &text, int n)
{
    counted();
    return text + std::to_string(n);
}

NAMED WIDE wide named_wide(wide a, wide b)
{
    counted();
    return a * b + a;
}

namespace deep {
int Engine::named_step(int n)
{
    counted();
    state = state * 5 + n;
    return (int)(state % 1000);
}

int Engine::named_step(double n)
{
    counted();
    state = state * 7 + (int64_t)(n * 4);
    return (int)(state % 1000);
}

template <class T> T Engine::named_add(T a, T b)
{
    counted();
    state++;
    return a + b;
}

template int Engine::named_add(int, int);
template double Engine::named_add(double, double);
}
