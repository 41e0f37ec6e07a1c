/* A small serving loop: the work of an inference engine on the GPU, and nothing else.
 *
 *   cc -O2 engine.c -o engine && ./engine [--steps N] [--graphs G] [--prefill] [--work W]
 *
 * First it captures a CUDA graph of a few kernels (the "decode step" of an engine). In every
 * iteration, it copies the input to the GPU, launches the graph and waits for the stream. With
 * --prefill, every tenth iteration first launches kernels one by one, like engines do for new
 * prompts. Building it does not need CUDA: the driver, libcuda.so.1, is opened at run time.
 *
 * To profile its iterations 10 to 19, without changes to the program:
 *
 *   tllmprof run --window 10-19 --step cudaGraphLaunch --nsys -- ./engine
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    KERNELS_IN_GRAPH = 4,
    KERNELS_IN_PREFILL = 8,
    PREFILL_EVERY = 10,
    BLOCKS = 64,
    THREADS = 128,
    ELEMENTS = BLOCKS * THREADS
};

/* ---- The driver API, declared like in cuda.h. */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { CU_STREAM_NON_BLOCKING = 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1 };

/* The driver functions that this program uses. Each entry has the function's name, the CUDA version that introduced
 * the wanted form of the function, and its parameters. */
#define DRIVER_FUNCTIONS(X)                                                                  \
    X(cuInit, 2000, (unsigned int flags))                                                    \
    X(cuGetErrorName, 6000, (CUresult error, const char **name))                             \
    X(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                   \
    X(cuDeviceGetName, 2000, (char *name, int length, CUdevice device))                      \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                   \
    X(cuCtxSetCurrent, 4000, (CUcontext context))                                            \
    X(cuModuleLoadData, 2000, (CUmodule * module, const void *image))                        \
    X(cuModuleUnload, 2000, (CUmodule module))                                               \
    X(cuModuleGetFunction, 2000, (CUfunction * function, CUmodule module, const char *name)) \
    X(cuMemAlloc, 3020, (CUdeviceptr * pointer, size_t bytes))                               \
    X(cuMemFree, 3020, (CUdeviceptr pointer))                                                \
    X(cuMemcpyHtoDAsync, 3020,                                                               \
      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                     \
    X(cuMemcpyDtoH, 3020, (void *to, CUdeviceptr from, size_t bytes))                        \
    X(cuStreamCreate, 2000, (CUstream * stream, unsigned int flags))                         \
    X(cuStreamDestroy, 4000, (CUstream stream))                                              \
    X(cuStreamSynchronize, 2000, (CUstream stream))                                          \
    X(cuStreamBeginCapture, 10010, (CUstream stream, int mode))                              \
    X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph *graph))                          \
    X(cuGraphInstantiateWithFlags, 11040,                                                    \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                         \
    X(cuGraphDestroy, 10000, (CUgraph graph))                                                \
    X(cuGraphExecDestroy, 10000, (CUgraphExec exec))                                         \
    X(cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream))                             \
    X(cuLaunchKernel, 4000,                                                                  \
      (CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,      \
       unsigned int blockX, unsigned int blockY, unsigned int blockZ,                        \
       unsigned int sharedBytes, CUstream stream, void **params, void **extra))

#define POINTER(name, version, arguments) static CUresult(*name) arguments;
DRIVER_FUNCTIONS(POINTER)

static void open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "engine: no CUDA driver: %s\n", dlerror());
        exit(1);
    }
    CUresult (*look_up)(const char *, void **, int, uint64_t, void *) =
        (CUresult(*)(const char *, void **, int, uint64_t, void *))dlsym(driver,
                                                                         "cuGetProcAddress_v2");
    CUresult (*look_up_v1)(const char *, void **, int, uint64_t) =
        (CUresult(*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
    if (look_up == NULL && look_up_v1 == NULL) {
        fprintf(stderr, "engine: the CUDA driver is older than 11.3\n");
        exit(1);
    }
#define FIND(name, version, arguments)                                                   \
    if ((look_up != NULL ? look_up(#name, (void **)&name, version, 0, NULL)               \
                         : look_up_v1(#name, (void **)&name, version, 0)) != 0 ||         \
        name == NULL) {                                                                  \
        fprintf(stderr, "engine: the CUDA driver has no %s\n", #name);                   \
        exit(1);                                                                         \
    }
    DRIVER_FUNCTIONS(FIND)
}

static void check(const char *call, CUresult error)
{
    if (error == 0)
        return;
    const char *name = NULL;
    cuGetErrorName(error, &name);
    fprintf(stderr, "engine: %s: %s (%d)\n", call, name != NULL ? name : "unknown error", error);
    exit(1);
}
#define CHECK(call) check(#call, call)

/* ---- The kernel adds its input to each element of the state. Then it repeats a step `rounds` times:
 * x = 3.9 (x - x * x). So even a small difference in the input changes the result. */

static const char PTX[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry decode(.param .u64 state, .param .u64 input, .param .u32 rounds)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<5>;\n"
    "    .reg .f32 %f<4>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [state];\n"
    "    ld.param.u64 %rd2, [input];\n"
    "    ld.param.u32 %r1, [rounds];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    cvta.to.global.u64 %rd2, %rd2;\n"
    "    mov.u32 %r2, %ctaid.x;\n"
    "    mov.u32 %r3, %ntid.x;\n"
    "    mov.u32 %r4, %tid.x;\n"
    "    mad.lo.u32 %r2, %r2, %r3, %r4;\n"
    "    mul.wide.u32 %rd3, %r2, 4;\n"
    "    add.u64 %rd1, %rd1, %rd3;\n"
    "    add.u64 %rd2, %rd2, %rd3;\n"
    "    ld.global.f32 %f1, [%rd1];\n"
    "    ld.global.f32 %f2, [%rd2];\n"
    "    add.rn.f32 %f1, %f1, %f2;\n"
    "    mul.rn.f32 %f1, %f1, 0f3F000000;\n" /* 0.5 */
    "again:\n"
    "    neg.f32 %f3, %f1;\n"
    "    fma.rn.f32 %f1, %f3, %f1, %f1;\n"
    "    mul.rn.f32 %f1, %f1, 0f4079999A;\n" /* 3.9 */
    "    sub.u32 %r1, %r1, 1;\n"
    "    setp.ne.u32 %p1, %r1, 0;\n"
    "    @%p1 bra again;\n"
    "    st.global.f32 [%rd1], %f1;\n"
    "    ret;\n"
    "}\n";

struct engine {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUgraphExec decode;
    CUdeviceptr state, input;
    float tokens[ELEMENTS];
    unsigned int rounds;
};

static void launch_kernels(struct engine *engine, int count)
{
    void *params[] = {&engine->state, &engine->input, &engine->rounds};
    for (int i = 0; i < count; i++)
        CHECK(cuLaunchKernel(engine->kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, engine->stream,
                             params, NULL));
}

static void start(struct engine *engine)
{
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&engine->device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&engine->context, engine->device));
    CHECK(cuCtxSetCurrent(engine->context));
    CHECK(cuModuleLoadData(&engine->module, PTX));
    CHECK(cuModuleGetFunction(&engine->kernel, engine->module, "decode"));
    CHECK(cuStreamCreate(&engine->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&engine->input, sizeof engine->tokens));
    CHECK(cuMemAlloc(&engine->state, sizeof engine->tokens));
    CHECK(cuMemcpyHtoDAsync(engine->state, engine->tokens, sizeof engine->tokens, engine->stream));

    CUgraph graph;
    CHECK(cuStreamBeginCapture(engine->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_kernels(engine, KERNELS_IN_GRAPH);
    CHECK(cuStreamEndCapture(engine->stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&engine->decode, graph, 0));
    CHECK(cuGraphDestroy(graph));
}

static void step(struct engine *engine, int n, int graphs, int prefill)
{
    for (int i = 0; i < ELEMENTS; i++)
        engine->tokens[i] = (float)((n * 1009 + i) % ELEMENTS + 1) / (ELEMENTS + 2);
    CHECK(cuMemcpyHtoDAsync(engine->input, engine->tokens, sizeof engine->tokens, engine->stream));
    if (prefill && n % PREFILL_EVERY == 0)
        launch_kernels(engine, KERNELS_IN_PREFILL);
    for (int i = 0; i < graphs; i++)
        CHECK(cuGraphLaunch(engine->decode, engine->stream));
    CHECK(cuStreamSynchronize(engine->stream));
}

/* Returns a hash (FNV-1a) of the state that the kernels have computed in all steps. */
static uint64_t result(struct engine *engine)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    CHECK(cuMemcpyDtoH(engine->tokens, engine->state, sizeof engine->tokens));
    const unsigned char *bytes = (const unsigned char *)engine->tokens;
    for (size_t i = 0; i < sizeof engine->tokens; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

static void stop(struct engine *engine)
{
    CHECK(cuGraphExecDestroy(engine->decode));
    CHECK(cuStreamDestroy(engine->stream));
    CHECK(cuMemFree(engine->state));
    CHECK(cuMemFree(engine->input));
    CHECK(cuModuleUnload(engine->module));
    CHECK(cuDevicePrimaryCtxRelease(engine->device));
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static const char HELP[] =
    "engine [--steps N] [--graphs G] [--prefill] [--work W]\n"
    "  --steps N    iterations (40)\n"
    "  --graphs G   graph launches in an iteration (1)\n"
    "  --prefill    every 10th iteration launches kernels one by one, too\n"
    "  --work W     rounds of each kernel (30000, about 1 ms a graph)\n";

/* Parses a whole number that is at least `least`. Ends the program if the text is anything else. */
static int number(const char *option, const char *text, int least)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > 1000000000) {
        fprintf(stderr, "engine: %s=\"%s\": wanted a whole number from %d on\n", option, text,
                least);
        exit(2);
    }
    return (int)value;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"steps", required_argument, NULL, 's'},
                                          {"graphs", required_argument, NULL, 'g'},
                                          {"prefill", no_argument, NULL, 'p'},
                                          {"work", required_argument, NULL, 'w'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    static struct engine engine = {.rounds = 30000};
    int steps = 40, graphs = 1, prefill = 0, option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (option) {
        case 's':
            steps = number("--steps", optarg, 0);
            break;
        case 'g':
            graphs = number("--graphs", optarg, 1);
            break;
        case 'p':
            prefill = 1;
            break;
        case 'w':
            engine.rounds = (unsigned int)number("--work", optarg, 1);
            break;
        case 'h':
            fputs(HELP, stdout);
            return 0;
        default:
            fputs(HELP, stderr);
            return 2;
        }
    }

    open_driver();
    start(&engine);
    char device[128] = "";
    CHECK(cuDeviceGetName(device, sizeof device, engine.device));
    double began = seconds();
    for (int n = 0; n < steps; n++)
        step(&engine, n, graphs, prefill);
    double took = seconds() - began;
    uint64_t checksum = result(&engine);
    stop(&engine);
    printf("engine: %d steps, checksum %016llx\n", steps, (unsigned long long)checksum);
    printf("engine: %.1f steps/s on %s\n", took > 0 ? steps / took : 0.0, device);
    return 0;
}
