/* Makes ten calls of a function that launches once, and one more launch after each call. A call
 * ends in one of many ways. If the library notices the end of a window's last call, it stops the
 * profiler before the launch after the call. The driver's log shows this. */
#include "program.h"

#include "loop.h"

#include <csetjmp>
#include <dlfcn.h>
#include <execinfo.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <ucontext.h>

#ifdef IN_LIBRARY
#define ENGINE __attribute__((noinline, visibility("default")))
#else
#define ENGINE static __attribute__((noinline))
#endif

enum how { RETURNS, THROWS, JUMPS, STRUCT, COROUTINE, BACKTRACE, CAUGHT_ABOVE, ASKS };
static const char *const HOWS[] = {"returns",   "throws",       "jumps", "struct", "coroutine",
                                   "backtrace", "caught_above", "asks",  NULL};

struct Result {
    long words[6];
};

static struct loop loop;
static enum how how;
static jmp_buf where;
static ucontext_t inside, outside;
static int frames;

ENGINE Result engine_step(int n);
ENGINE int engine_asks(int n);

Result engine_step(int n)
{
    std::string local = "a local that is destroyed " + std::to_string(n);
    loop_step(&loop, n);
    switch (how) {
    case THROWS:
    case CAUGHT_ABOVE:
        throw std::runtime_error(local);
    case JUMPS:
        local.clear();
        local.shrink_to_fit();
        longjmp(where, n + 1);
    case COROUTINE:
        swapcontext(&inside, &outside);
        break;
    case BACKTRACE: {
        void *addresses[64];
        frames = backtrace(addresses, 64);
        break;
    }
    default:
        break;
    }
    return {{n, n + 1, n + 2, n + 3, n + 4, (long)local.size()}};
}

/* Launches. Returns 1 if the return address is in this file, that is, if no hook has changed it. */
int engine_asks(int n)
{
    void *caller = __builtin_extract_return_addr(__builtin_return_address(0));
    Dl_info theirs, ours;
    loop_step(&loop, n);
    return dladdr(caller, &theirs) && dladdr(&loop, &ours) && theirs.dli_fbase == ours.dli_fbase;
}

static long sum;

static __attribute__((noinline)) void one(int n)
{
    volatile double kept = n * 0.5;
    if (how == ASKS) {
        sum = sum * 2 + engine_asks(n);
        return;
    }
    if (how == CAUGHT_ABOVE) {
        sum += engine_step(n).words[5];
        return;
    }
    try {
        if (how == JUMPS && setjmp(where) != 0) {
            sum += n;
            return;
        }
        Result result = engine_step(n);
        for (long word : result.words)
            sum = sum * 3 + word;
        sum += (long)(kept * 2);
    } catch (const std::runtime_error &error) {
        sum += (long)strlen(error.what());
    }
}

static __attribute__((noinline)) void outer(int n)
{
    try {
        one(n);
    } catch (const std::runtime_error &error) {
        sum += 100 * (long)strlen(error.what());
    }
}

static void in_coroutine()
{
    for (int n = 0; n < 10; n++)
        one(n);
}

int main(int count, char **words)
{
    program_begin();
    how = (enum how)choose("how", count > 1 ? words[1] : "returns", HOWS);
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    if (how == COROUTINE) {
        /* One thread begins a step within a coroutine. Another thread then resumes the coroutine and ends the
         * step. */
        static char stack[256 * 1024];
        getcontext(&inside);
        inside.uc_stack.ss_sp = stack;
        inside.uc_stack.ss_size = sizeof stack;
        inside.uc_link = &outside;
        makecontext(&inside, in_coroutine, 0);
        for (int n = 0; n < 11; n++)
            std::thread([] { swapcontext(&outside, &inside); }).join();
    } else
        for (int n = 0; n < 10; n++) {
            outer(n);
            loop_step(&loop, 100 + n);
        }
    printf("sum %ld frames %d checksum %016llx\n", sum, frames > 2, (unsigned long long)loop_close(&loop));
    return 0;
}
