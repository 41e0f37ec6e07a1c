/* Makes steps with ranges of every kind, and prints what NVTX returns.
 *
 *   ranges KIND [STEPS [elsewhere]]
 *
 * KIND is the way in which a step's range is opened, one of the functions below. Every step also opens ranges with
 * other names, around its range and within it. With `elsewhere`, the program itself sets
 * NVTX_INJECTION64_PATH, the variable that names the NVTX tool, to a file that does not exist. */
#include "loop.h"

#include <pthread.h>
#include <string.h>
#include <wchar.h>

static nvtxDomainHandle_t engine, other;
static nvtxStringHandle_t step_string, wide_string, inner_string;
static nvtxRangeId_t id;

static void push_a(int n)
{
    char name[32];
    snprintf(name, sizeof name, "step %d", n);
    printf("%d", nvtxRangePushA(name));
    nvtxRangePushA("inner");
    work();
    nvtxRangePop();
    printf(" %d\n", nvtxRangePop());
}

static void push_w(int n)
{
    wchar_t name[32];
    swprintf(name, 32, L"step %d", n);
    printf("%d", nvtxRangePushW(name));
    work();
    printf(" %d\n", nvtxRangePop());
}

static void push_ex(int n)
{
    char name[32];
    snprintf(name, sizeof name, "step %d", n);
    nvtxEventAttributes_t attributes = named(name);
    printf("%d", nvtxRangePushEx(&attributes));
    work();
    printf(" %d\n", nvtxRangePop());
}

/* Ranges of several domains overlap, because each domain has its own stack. */
static void domain_push(int n)
{
    (void)n;
    nvtxEventAttributes_t step = registered(step_string), inner = registered(inner_string), name = named("step");
    printf("%d", nvtxDomainRangePushEx(engine, &step));
    nvtxDomainRangePushEx(other, &name);
    nvtxDomainRangePushEx(engine, &inner);
    nvtxRangePushA("step of the default domain");
    work();
    nvtxDomainRangePop(other);
    nvtxDomainRangePop(engine);
    printf(" %d\n", nvtxDomainRangePop(engine));
    nvtxRangePop();
}

static void domain_push_wide(int n)
{
    (void)n;
    nvtxEventAttributes_t step = registered(wide_string);
    printf("%d", nvtxDomainRangePushEx(engine, &step));
    work();
    printf(" %d\n", nvtxDomainRangePop(engine));
}

static void *end_range(void *unused)
{
    (void)unused;
    nvtxRangeEnd(id);
    return NULL;
}

/* The step's range begins within an unrelated range and ends on another thread, so ranges overlap. */
static void start(int n)
{
    char name[32];
    snprintf(name, sizeof name, "step %d", n);
    nvtxRangeId_t around = nvtxRangeStartA("around");
    id = nvtxRangeStartA(name);
    printf("%d\n", id != around || id == 0);
    nvtxRangeEnd(around);
    work();
    pthread_t thread;
    pthread_create(&thread, NULL, end_range, NULL);
    pthread_join(thread, NULL);
}

static void domain_start(int n)
{
    (void)n;
    nvtxEventAttributes_t step = registered(step_string);
    id = nvtxDomainRangeStartEx(engine, &step);
    work();
    nvtxDomainRangeEnd(engine, id);
}

/* Opens two nested ranges that both match the rule, so that a step is two iterations. */
static void nested(int n)
{
    nvtxRangePushA("step outside");
    push_a(n);
    nvtxRangePop();
}

/* Pushes a range and never pops it. */
static void unpopped(int n)
{
    (void)n;
    nvtxRangePushA("step");
    work();
}

/* Captures a graph before each step, within a range that matches the rule. This range does not count as an
 * iteration. */
static void captured(int n)
{
    cudaStream_t capturing;
    cudaGraph_t graph;
    if (cudaStreamCreate(&capturing) != cudaSuccess ||
        cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed) != cudaSuccess)
        exit(1);
    nvtxRangePushA("step");
    nvtxRangePop();
    if (cudaStreamEndCapture(capturing, &graph) != cudaSuccess || cudaGraphDestroy(graph) != cudaSuccess ||
        cudaStreamDestroy(capturing) != cudaSuccess)
        exit(1);
    push_a(n);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*step)(int); } KINDS[] = {
        {"push_a", push_a}, {"push_w", push_w}, {"push_ex", push_ex}, {"domain_push", domain_push},
        {"domain_push_wide", domain_push_wide}, {"start", start}, {"domain_start", domain_start},
        {"nested", nested}, {"unpopped", unpopped}, {"captured", captured},
    };
    int steps = argc > 2 ? atoi(argv[2]) : 40;
    if (argc > 3)
        setenv("NVTX_INJECTION64_PATH", "/nonexistent/tool.so", 1);
    engine = nvtxDomainCreateA("engine");
    other = nvtxDomainCreateW(L"other");
    step_string = nvtxDomainRegisterStringA(engine, "step of the engine");
    wide_string = nvtxDomainRegisterStringW(engine, L"step, wide");
    inner_string = nvtxDomainRegisterStringA(engine, "inner");
    use_cuda();
    printf("pop of nothing: %d\n", nvtxRangePop());
    for (int n = 0; n < steps; n++)
        for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++)
            if (argc > 1 && strcmp(argv[1], KINDS[kind].name) == 0) {
                KINDS[kind].step(n);
                launch();
            }
    nvtxDomainDestroy(other);
    nvtxDomainDestroy(engine);
    return 0;
}
