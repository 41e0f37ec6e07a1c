/* Makes many nested calls in twelve threads at once. Exceptions leave some of the calls, and some exceptions
 * pass many calls before they are caught. The program prints a result that depends on every call. */
#define STANDIN
#include "standin_driver.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define OP static __attribute__((noinline, noclone))

enum { THREADS = 12, CALLS = 20000, DEEPEST = 20 };

static std::atomic<long> total, caught;

struct Destroyed {
    std::string text;
    ~Destroyed()
    {
        total += (long)text.size();
    }
};

OP long op_any(unsigned *seed, int depth);

OP long op_throws(unsigned *seed, int depth)
{
    Destroyed local{std::to_string(depth)};
    if (rand_r(seed) % 4 == 0)
        throw std::runtime_error("as it should");
    return op_any(seed, depth + 1) + 1;
}

OP double op_numbers(double a, double b, unsigned *seed)
{
    double result = a * b + 1;
    if (rand_r(seed) % 16 == 0)
        throw 3;
    return result;
}

OP long op_ends(unsigned *seed, int depth)
{
    return op_any(seed, depth + 1);
}

OP long op_any(unsigned *seed, int depth)
{
    volatile double kept = depth * 0.5;
    if (depth > DEEPEST)
        return depth;
    switch (rand_r(seed) % 6) {
    case 0:
        try {
            return op_throws(seed, depth);
        } catch (const std::runtime_error &) {
            return caught++ > 0;
        }
    case 1:
        return op_throws(seed, depth) + 1;
    case 2:
        return op_ends(seed, depth);
    case 3: {
        double result = op_numbers(depth, 2.0, seed);
        if (result != depth * 2.0 + 1)
            abort();
        return (long)result;
    }
    case 4: {
        Destroyed local{"abc"};
        long both = op_any(seed, depth + 1) + op_any(seed, depth + 1);
        if (kept != depth * 0.5)
            abort();
        return both;
    }
    default:
        return depth;
    }
}

int main()
{
    CUcontext context;
    CUdevice device;
    CUdeviceptr memory;
    cuInit(0);
    cuDeviceGet(&device, 0);
    cuDevicePrimaryCtxRetain(&context, device);
    cuCtxSetCurrent(context);
    cuMemAlloc_v2(&memory, 64);
    caught = 1;
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < THREADS; number++)
        threads.emplace_back([number] {
            unsigned seed = number;
            for (int i = 0; i < CALLS; i++) {
                try {
                    total += op_any(&seed, 0);
                } catch (int) {
                    caught++;
                } catch (const std::exception &) {
                    caught++;
                }
            }
        });
    for (auto &thread : threads)
        thread.join();
    printf("%ld %ld\n", total.load(), caught.load());
    return 0;
}
