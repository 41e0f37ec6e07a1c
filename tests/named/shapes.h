/* Functions with many kinds of signatures and bodies. Each function counts its own calls, and its result depends
 * on every argument. */
#ifndef SHAPES_H
#define SHAPES_H

#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <string>

#ifdef ALONE
#define NAMED static __attribute__((noinline, unused))
#else
#define NAMED __attribute__((noinline, visibility("default")))
#endif

struct Small {
    int64_t whole;
    double part;
};
struct Large {
    int64_t words[9];
};
struct Spread {
    double parts[4];
};
/* A type that fills a whole vector register. */
#ifdef __x86_64__
#define WIDE __attribute__((target("avx")))
typedef double wide __attribute__((vector_size(32)));
#else
#define WIDE
typedef double wide __attribute__((vector_size(16)));
#endif
enum { WIDTH = sizeof(wide) / sizeof(double) };

extern std::atomic<long> named_calls;

NAMED int64_t named_args(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, double h, float i);
NAMED int64_t named_varargs(int count, ...);
NAMED Small named_small(int64_t whole, double part);
NAMED Large named_large(int64_t seed);
NAMED Spread named_spread(double a, double b, double c, double d, double e, double f, double g, double h);
NAMED long double named_long_double(long double x, int n);
NAMED __int128 named_int128(__int128 x, uint64_t y);
NAMED int named_fibonacci(int n);
NAMED int named_throws(int n);
NAMED int named_tail(int n, int sum);
NAMED void named_jumps(jmp_buf *where, int n);
NAMED std::string named_string(const std::string &text, int n);
NAMED WIDE wide named_wide(wide a, wide b);

namespace deep {
struct Engine {
    int64_t state = 1;
    __attribute__((noinline)) int named_step(int n);
    __attribute__((noinline)) int named_step(double n);
    template <class T> __attribute__((noinline)) T named_add(T a, T b);
};
}

#endif
