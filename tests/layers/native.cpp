/* Launches kernels in native functions that are scopes. All these functions are called `op_…`, and each kernel is
 * named after the functions that it is launched in. So a test can compare a kernel's scope in the record with its
 * name.
 *   program MODE STEPS [PLUGIN]
 * MODE: plain      nested functions, one of them recursive; two that end with a jump to another
 *       graph      the same, captured into a graph
 *       throws     exceptions leave the functions, and are caught one call above or many calls above
 *       jumps      longjmp leaves the functions
 *       cancelled  a thread ends within the functions, by pthread_exit
 *       threads    eight threads run the functions at once
 *       deep       the functions nest deeper than the library can follow
 *       coroutine  a function is entered on another stack and launches there
 *       signals    a signal handler runs the functions, on a small stack
 *       forks      a child process runs the functions, and ends within them
 *       library    the functions are in PLUGIN, which is opened after some calls */
#define STANDIN
#include "standin_driver.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <csignal>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                                   \
    do {                                                              \
        int error = (int)(call);                                      \
        if (error != 0) {                                             \
            printf("line %d: error %d\n", __LINE__, error);           \
            exit(3);                                                  \
        }                                                             \
    } while (0)

#define OP static __attribute__((noinline, noclone))

static CUcontext context;
static CUmodule module;
static CUdeviceptr buffer;
static thread_local CUstream stream;
static long sum;

/* Launches a kernel named `name`. The function's frame is large and mostly not written to, so data of earlier
 * calls stays on the stack. */
static __attribute__((noinline)) void launch(const char *name)
{
    volatile char room[512];
    room[0] = name[0];
    CUfunction kernel;
    CHECK(cuModuleGetFunction(&kernel, module, name));
    void *params[] = {&buffer};
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
    room[1] = room[0];
}

namespace
{
struct Engine {
    template <typename T> T op_template(T number);
};
}

/* A function with arguments of all types, and a result that does not fit into a register. */
struct Result {
    double parts[4];
};

OP Result op_inner(int a, double b, const std::string &c, long d, long e, long f, long g, long h)
{
    launch("op_outer/op_inner");
    return {{a + b, (double)c.size(), (double)(d + e + f), (double)(g + h)}};
}

OP double op_outer(int n)
{
    launch("op_outer");
    Result result = op_inner(n, n * 0.5, "text", 1, 2, 3, 4, 5);
    launch("op_outer");
    return result.parts[0] + result.parts[1] + result.parts[2] + result.parts[3];
}

OP long op_recursive(int depth)
{
    std::string name = "op_recursive";
    launch(name.c_str());
    long below = depth > 0 ? op_recursive(depth - 1) : 0;
    launch(name.c_str());
    return below * 2 + depth;
}

template <typename T> __attribute__((noinline, noclone)) T Engine::op_template(T number)
{
    launch("Engine::op_template");
    return number * 2;
}

static volatile int rounds;

/* Functions that end with a tail call: to op_end, or alternately to each other. */
OP long op_end(long n)
{
    launch("op_tail/op_end");
    return n + 1;
}

OP long op_tail(long n)
{
    launch("op_tail");
    return op_end(n * 2);
}

OP long op_pong(long n);

OP long op_ping(long n)
{
    rounds = rounds + 1;
    if (n == 0) {
        launch("op_ping");
        return rounds;
    }
    return op_pong(n - 1);
}

OP long op_pong(long n)
{
    rounds = rounds + 1;
    return op_ping(n == 0 ? 0 : n - 1);
}

static void plain(int n)
{
    Engine engine;
    launch("none");
    sum += (long)op_outer(n);
    sum += op_recursive(3);
    sum += engine.op_template<long>(n) + (long)engine.op_template<double>(n);
    sum += op_tail(n);
    sum += op_ping(1000);
    launch("none");
}

OP void op_throws(int n)
{
    std::string local = "destroyed " + std::to_string(n);
    launch("op_throws");
    throw std::runtime_error(local);
}

static __attribute__((noinline)) void catches(int n)
{
    try {
        op_throws(n);
    } catch (const std::runtime_error &error) {
        sum += (long)strlen(error.what());
    }
    launch("none");
}

OP void op_below(int n)
{
    void *addresses[32];
    launch("op_around/op_below");
    sum += backtrace(addresses, 32) > 2;
    if (n % 2 == 0)
        throw n;
    throw std::runtime_error("odd");
}

OP void op_around(int n)
{
    launch("op_around");
    op_below(n);
}

/* An object in a caller of the op_ functions. Its destructor, which runs when an exception is unwound, launches
 * a kernel. At that time, all op_ scopes are closed. */
static __attribute__((noinline)) void above(int n)
{
    struct Outside {
        ~Outside()
        {
            launch("none");
            op_outer(2);
        }
    } outside;
    op_around(n);
}

static void throws(int n)
{
    catches(n);
    for (int i = 0; i < 40; i++) {
        try {
            above(n + i);
        } catch (int number) {
            sum += number;
        } catch (const std::runtime_error &) {
            sum++;
        }
        launch("none");
    }
}

static jmp_buf where;

OP void op_jumps(int n)
{
    launch("op_jumps");
    longjmp(where, n + 1);
}

static __attribute__((noinline)) void below(int n)
{
    volatile char room[2000];
    memset((char *)room, 0x55, sizeof room);
    if (n > 0)
        below(n - 1);
    room[1] = room[0];
}

static void jumps(int n)
{
    if (setjmp(where) == 0)
        op_jumps(n);
    below(2);
    launch("none");
    sum += (long)op_outer(n);
    launch("none");
}

OP long op_handler(long n)
{
    return n * 2 + rounds;
}

static void on_signal(int)
{
    sum += op_handler(1);
}

/* Runs the functions in a signal handler. The memory below the handler's stack is not accessible, so a stack
 * overflow ends the program. */
static void signals()
{
    enum { ROOM = 1 << 20 };
    static char *room;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = (8192 + (size_t)sysconf(_SC_MINSIGSTKSZ) + page - 1) & ~(page - 1);
    if (room == NULL) {
        room = (char *)mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *bottom = room + ROOM - size;
        CHECK(mprotect(bottom, size, PROT_READ | PROT_WRITE));
        stack_t stack = {};
        stack.ss_sp = bottom;
        stack.ss_size = size;
        struct sigaction action = {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_ONSTACK;
        CHECK(sigaltstack(&stack, NULL));
        CHECK(sigaction(SIGUSR1, &action, NULL));
        raise(SIGUSR1); /* here the thread makes its first call of an op_ function */
    }
    op_outer(1);
    raise(SIGUSR1);
}

OP void op_leaves()
{
    launch("op_leaves");
    pthread_exit(NULL);
}

static void *leaves(void *)
{
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch("none");
    op_leaves();
    return NULL;
}

static void cancelled()
{
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, leaves, NULL));
        CHECK(pthread_join(thread, NULL));
    }
}

static void threads()
{
    std::vector<std::thread> all;
    for (int i = 0; i < 8; i++)
        all.emplace_back([i] {
            CHECK(cuCtxSetCurrent(context));
            CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            for (int n = 0; n < 20; n++) {
                launch("none");
                op_outer(i);
                op_recursive(5);
                launch("none");
            }
        });
    for (auto &thread : all)
        thread.join();
}

OP long op_deep(int depth)
{
    launch(depth < 64 ? "op_deep" : "unknown");
    long below = depth < 200 ? op_deep(depth + 1) : 0;
    rounds = rounds + 1;
    return below + depth;
}

OP void op_alternate(int n);
OP void op_every(int n)
{
    launch("op_every");
    op_alternate(n);
}

OP void op_alternate(int n)
{
    launch("op_every/op_alternate");
    sum += n;
}

static ucontext_t inside, outside;

OP void op_switches(int n)
{
    launch("unknown");
    swapcontext(&inside, &outside);
    launch("unknown");
    sum += n;
}

static void in_coroutine()
{
    for (int n = 0;; n++)
        op_switches(n);
}

static void coroutine()
{
    static char stack[256 * 1024];
    if (inside.uc_stack.ss_sp == NULL) {
        getcontext(&inside);
        inside.uc_stack.ss_sp = stack;
        inside.uc_stack.ss_size = sizeof stack;
        inside.uc_link = &outside;
        makecontext(&inside, in_coroutine, 0);
    }
    op_outer(1);
    /* When the coroutine is entered, no op_ function is being called, so no scope is open. */
    swapcontext(&outside, &inside);
    op_every(1);
    swapcontext(&outside, &inside);
}

OP long op_every_child(long n)
{
    return n * 3 + (long)rounds;
}

OP void op_forks()
{
    launch("op_forks");
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < 500; n++)
            sum += (long)op_every_child(n);
        _exit(sum == 1 ? 4 : 5);
    }
    int status;
    CHECK(waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5);
    launch("op_forks");
}

OP long op_child(int n)
{
    return n > 0 ? op_child(n - 1) * 3 + n : n == 0 ? fork() : rounds;
}

/* Forks within many nested calls. The child returns from all of them. */
static void forked_in_the_midst()
{
    pid_t parent = getpid();
    long result = op_child(10);
    if (getpid() != parent) {
        long again = 0;
        for (int n = 0; n < 300; n++)
            again += op_child(-1) == 0;
        _exit(again > 300 ? 1 : 6);
    }
    sum += result != 0;
    int status;
    while (wait(&status) > 0)
        CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 6);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "plain";
    int steps = argc > 2 ? atoi(argv[2]) : 20;
    CUdevice device;
    CUevent done;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, "kernels"));
    CHECK(cuMemAlloc_v2(&buffer, 64));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));

    CUgraphExec exec = NULL;
    if (strcmp(mode, "graph") == 0) {
        CUgraph graph;
        CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        plain(1);
        CHECK(cuStreamEndCapture(stream, &graph));
        CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        CHECK(cuGraphDestroy(graph));
    }
    void (*plugin)(void (*)(const char *)) = NULL;
    for (int step = 0; step < steps; step++) {
        if (exec != NULL)
            CHECK(cuGraphLaunch(exec, stream));
        if (strcmp(mode, "plain") == 0)
            plain(step);
        if (strcmp(mode, "throws") == 0)
            throws(step);
        if (strcmp(mode, "jumps") == 0)
            jumps(step);
        if (strcmp(mode, "signals") == 0)
            signals();
        if (strcmp(mode, "cancelled") == 0)
            cancelled();
        if (strcmp(mode, "threads") == 0)
            threads();
        if (strcmp(mode, "deep") == 0) {
            sum += op_deep(0);
            op_every(step);
        }
        if (strcmp(mode, "coroutine") == 0)
            coroutine();
        if (strcmp(mode, "forks") == 0 && step == 7)
            forked_in_the_midst();
        if (strcmp(mode, "forks") == 0)
            op_forks();
        if (strcmp(mode, "library") == 0 && argc > 3) {
            if (step == 3) {
                void *library = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
                CHECK(library == NULL);
                *(void **)&plugin = dlsym(library, "plugin_runs");
                CHECK(plugin == NULL);
            }
            if (plugin != NULL)
                plugin(launch);
            plain(step);
        }
        CHECK(cuEventRecord(done, stream));
        CHECK(cuEventSynchronize(done));
    }
    printf("done\n");
    return sum == 0x7fffffff ? 8 : 7;
}
