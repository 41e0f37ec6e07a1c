/* Checks that the stand-in behaves as its README says. Most importantly, it must refuse what the real driver
 * refuses, because tests rely on that to prove that the library made no such call. */
#define _GNU_SOURCE
#define STANDIN_SOURCE
#include "standin_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

#define WANT(condition)                                               \
    do {                                                              \
        if (!(condition)) {                                           \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
            failures++;                                               \
        }                                                             \
    } while (0)

static char log_path[] = "/tmp/standin_selftest.XXXXXX";

/* Returns 1 if the log's last line has this text, such as "cuGraphLaunch" or "ILLEGAL cuGraphLaunch". */
static int last_is(const char *wanted)
{
    static char text[1 << 16];
    FILE *file = fopen(log_path, "r");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL)
        fclose(file);
    text[length] = '\0';
    char *last = text, *line = strtok(text, "\n"), found[128] = "";
    for (; line != NULL; line = strtok(NULL, "\n"))
        last = line;
    sscanf(last, "%*u %*d %*d %127[^\n]", found);
    return strncmp(found, wanted, strlen(wanted)) == 0 &&
           strncmp(found + strlen(wanted), " 0x", 3) == 0;
}

static void *look(const char *name, int version, cuuint64_t flags)
{
    void *found = (void *)1;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    CUresult result = cuGetProcAddress_v2(name, &found, version, flags, &status);
    WANT((result == CUDA_SUCCESS) == (found != NULL));
    WANT((result == CUDA_SUCCESS) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
    void *by_v1 = (void *)1;
    WANT(cuGetProcAddress(name, &by_v1, version, flags) == result && by_v1 == found);
    return found;
}

static void check_look_up(void)
{
    WANT(look("", 0, 0) == NULL);
    WANT(look("cuNoSuchFunction", 13000, 0) == NULL);
    WANT(look("cuGraphLaunch_ptsz", 13000, 0) == NULL);
    WANT(look("cuGraphLaunch", 10000, 0) == (void *)cuGraphLaunch);
    WANT(look("cuGraphLaunch", 10000, 1) == (void *)cuGraphLaunch);
    WANT(look("cuGraphLaunch", 10000, 2) == (void *)cuGraphLaunch_ptsz);
    WANT(look("cuGraphLaunch", 9000, 0) == NULL);
    WANT(look("cuEventSynchronize", 2000, 2) == (void *)cuEventSynchronize);
    WANT(look("cuStreamBeginCapture", 10000, 0) == (void *)cuStreamBeginCapture);
    WANT(look("cuStreamBeginCapture", 10010, 0) == (void *)cuStreamBeginCapture_v2);
    WANT(look("cuStreamBeginCapture", 12000, 2) == (void *)cuStreamBeginCapture_v2_ptsz);
    WANT(look("cuMemcpyDtoH", 7000, 2) == (void *)cuMemcpyDtoH_v2_ptds);
    WANT(look("cuCtxSynchronize", 12000, 0) == (void *)cuCtxSynchronize);
    WANT(look("cuCtxSynchronize", 13000, 0) == (void *)cuCtxSynchronize_v2);
    WANT(look("cuGetProcAddress", 11030, 0) == (void *)cuGetProcAddress);
    WANT(look("cuGetProcAddress", 12000, 0) == (void *)cuGetProcAddress_v2);
    WANT(cuGetProcAddress_v2("cuGraphLaunch", NULL, 12000, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
    setenv("STANDIN_LACKS", "cuLaunchKernelEx,cuStreamBeginCapture_v2", 1);
    WANT(look("cuLaunchKernelEx", 12000, 0) == NULL);
    WANT(look("cuLaunchKernelEx", 12000, 2) == NULL);
    WANT(look("cuLaunchKernel", 12000, 0) == (void *)cuLaunchKernel);
    WANT(look("cuStreamBeginCapture", 12000, 0) == (void *)cuStreamBeginCapture);
    unsetenv("STANDIN_LACKS");
}

static void *without_context(void *unused)
{
    WANT(cuProfilerStart() == CUDA_ERROR_INVALID_CONTEXT);
    WANT(last_is("NOCONTEXT cuProfilerStart"));
    return unused;
}

static void check_contexts(void)
{
    CUcontext context = NULL;
    WANT(cuProfilerStart() == CUDA_ERROR_NOT_INITIALIZED);
    WANT(last_is("UNINITIALIZED cuProfilerStart"));
    WANT(cuInit(0) == CUDA_SUCCESS);
    WANT(cuProfilerStop() == CUDA_ERROR_INVALID_CONTEXT);
    WANT(last_is("NOCONTEXT cuProfilerStop"));
    WANT(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    WANT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    WANT(cuProfilerStart() == CUDA_SUCCESS && last_is("cuProfilerStart"));
    WANT(cuProfilerStop() == CUDA_SUCCESS && last_is("cuProfilerStop"));
    pthread_t thread;
    pthread_create(&thread, NULL, without_context, NULL);
    pthread_join(thread, NULL);
}

static void check_captures(void)
{
    CUstream stream, other;
    CUgraph graph = (CUgraph)1;
    CUevent event;
    CUstreamCaptureStatus status;
    char byte;
    WANT(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    WANT(cuStreamCreate(&other, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    WANT(cuEventCreate(&event, 0) == CUDA_SUCCESS);

    /* A capture succeeds if the program makes no waits, or only waits on other streams. */
    WANT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    WANT(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == 1);
    WANT(cuStreamSynchronize(other) == CUDA_SUCCESS && last_is("cuStreamSynchronize_end"));
    WANT(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph != NULL);
    WANT(cuGraphDestroy(graph) == CUDA_SUCCESS);

    /* Every wait that involves the captured stream invalidates the capture. */
    for (int wait = 0; wait < 4; wait++) {
        WANT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        switch (wait) {
        case 0:
            WANT(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            WANT(last_is("ILLEGAL cuCtxSynchronize"));
            break;
        case 1:
            WANT(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            WANT(last_is("ILLEGAL cuStreamSynchronize"));
            break;
        case 2:
            WANT(cuMemcpyDtoH_v2(&byte, 0, 1) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            WANT(last_is("ILLEGAL cuMemcpyDtoH_v2"));
            break;
        default:
            WANT(cuCtxSynchronize_v2(NULL) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            WANT(last_is("ILLEGAL cuCtxSynchronize_v2"));
        }
        WANT(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == 2);
        WANT(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        WANT(graph == NULL);
        WANT(cuCtxSynchronize() == CUDA_SUCCESS && last_is("cuCtxSynchronize_end"));
    }
    WANT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    WANT(cuEventRecord(event, stream) == CUDA_SUCCESS);
    WANT(cuEventSynchronize(event) == CUDA_ERROR_CAPTURED_EVENT);
    WANT(last_is("ILLEGAL cuEventSynchronize"));
    WANT(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    WANT(cuGraphDestroy(graph) == CUDA_SUCCESS);
    WANT(cuStreamDestroy_v2(stream) == CUDA_SUCCESS && cuStreamDestroy_v2(other) == CUDA_SUCCESS);
    WANT(cuEventDestroy_v2(event) == CUDA_SUCCESS);
}

static CUevent moments[2];
static int is_relaxed;

static void *ask_beside_a_capture(void *unused)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult wanted = is_relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    float ms;
    if (is_relaxed)
        WANT(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS && mode == 0);
    WANT(cuEventQuery(moments[0]) == wanted);
    WANT(cuEventElapsedTime(&ms, moments[0], moments[1]) == wanted);
    return unused;
}

static void check_events(void)
{
    CUstream stream, other;
    CUgraph graph;
    CUevent timeless, captured;
    CUcontext context = NULL, of_stream = NULL;
    float ms = -1;
    WANT(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    WANT(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    WANT(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
    WANT(cuStreamGetCtx(stream, &of_stream) == CUDA_SUCCESS && of_stream == context);
    WANT(cuEventCreate(&moments[0], 0) == CUDA_SUCCESS);
    WANT(cuEventCreate(&moments[1], 0) == CUDA_SUCCESS);
    WANT(cuEventCreate(&timeless, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    WANT(cuEventCreate(&captured, 0) == CUDA_SUCCESS);
    WANT(cuEventQuery(moments[0]) == CUDA_SUCCESS);
    WANT(cuEventElapsedTime(&ms, moments[0], moments[1]) == CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < 2; i++) {
        WANT(cuEventRecord(moments[i], stream) == CUDA_SUCCESS);
        WANT(cuEventSynchronize(moments[i]) == CUDA_SUCCESS);
        WANT(cuEventQuery(moments[i]) == CUDA_SUCCESS);
    }
    WANT(cuEventElapsedTime(&ms, moments[0], moments[1]) == CUDA_SUCCESS && ms >= 0);
    WANT(cuEventElapsedTime(&ms, moments[1], moments[0]) == CUDA_SUCCESS && ms <= 0);
    WANT(cuEventElapsedTime(&ms, moments[0], timeless) == CUDA_ERROR_INVALID_HANDLE);

    /* During a capture in global mode, only a thread in relaxed mode may make unsafe calls. */
    for (is_relaxed = 0; is_relaxed < 2; is_relaxed++) {
        pthread_t thread;
        WANT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
        WANT(cuEventRecord(captured, stream) == CUDA_SUCCESS);
        WANT(cuEventRecord(moments[1], other) == CUDA_SUCCESS);
        pthread_create(&thread, NULL, ask_beside_a_capture, NULL);
        pthread_join(thread, NULL);
        CUresult ended = cuStreamEndCapture(stream, &graph);
        WANT(ended == (is_relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        WANT(cuEventQuery(captured) == CUDA_ERROR_CAPTURED_EVENT);
        if (graph != NULL)
            WANT(cuGraphDestroy(graph) == CUDA_SUCCESS);
    }
    /* The legacy stream accepts no work while a blocking stream is captured. */
    WANT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    WANT(cuEventRecord(moments[0], NULL) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    WANT(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    setenv("STANDIN_FAILS", "cuEventQuery=700", 1);
    WANT(cuEventQuery(moments[0]) == (CUresult)700);
    unsetenv("STANDIN_FAILS");
    WANT(cuEventQuery(moments[0]) == CUDA_SUCCESS);
}

static void check_process(void)
{
    errno = 55;
    WANT(cuProfilerStart() == CUDA_SUCCESS && errno == 55);
    for (int fd = 100; fd < 110; fd++)
        close(fd); /* closes all descriptors, like a daemon; the log must be opened again */
    errno = 55;
    WANT(cuProfilerStop() == CUDA_SUCCESS && errno == 55 && last_is("cuProfilerStop"));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        WANT(cuProfilerStop() == CUDA_ERROR_NOT_INITIALIZED && last_is("FORKED cuProfilerStop"));
        _exit(failures);
    }
    int status = -1;
    WANT(waitpid(child, &status, 0) == child && status == 0);
}

static unsigned int seen_works;

static void count_work(const struct standin_work *work)
{
    WANT(work->kind == 2 && work->start != 0 && work->end >= work->start);
    seen_works++;
}

/* Checks that a profiler is notified of the GPU's work, and that a call during the profiler's removal destroys
 * the context. This check is the last one, because the driver does not work afterwards. */
static void check_tool(void)
{
    CUdeviceptr words = 0;
    WANT(cuMemAlloc_v2(&words, 64) == CUDA_SUCCESS);
    standin_set_tool(count_work);
    WANT(cuMemsetD8Async(words, 1, 64, NULL) == CUDA_SUCCESS);
    WANT(seen_works == 1);
    WANT(standin_begin_removal() == 0);
    WANT(standin_end_removal() == 0);
    standin_set_tool(NULL);
    WANT(cuMemsetD8Async(words, 2, 64, NULL) == CUDA_SUCCESS);
    WANT(seen_works == 1);
    WANT(standin_begin_removal() == 0);
    WANT(standin_removals() == 2);
    WANT(cuMemsetD8Async(words, 3, 64, NULL) == CUDA_ERROR_LAUNCH_FAILED);
    WANT(standin_end_removal() == 1);
    WANT(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED && last_is("DESTROYED cuCtxSynchronize"));
}

int main(void)
{
    alarm(300);
    close(mkstemp(log_path));
    setenv("STANDIN_LOG", log_path, 1);
    check_look_up();
    check_contexts();
    check_captures();
    check_events();
    check_process();
    check_tool();
    unlink(log_path);
    puts(failures == 0 ? "selftest: as documented" : "selftest: failed");
    return failures != 0;
}
