/* Makes steps with known GPU work. Each step begins with a graph launch.
 *   gpu HOW STEPS
 * Prints lines `STEP PIECES`, where PIECES is the number of pieces of GPU work that the program has enqueued for step
 * STEP since the previous line. A test compares them with the stand-in's own log of the GPU's work. */
#define GPU_DRIVER
#include "program.h"

#include "loop.h"

#include <pthread.h>
#include <semaphore.h>

enum how {
    PLAIN,     /* kernels, then a wait for the stream */
    WAITS,     /* two waits a step, and the host busy in between */
    COPIES,    /* like WAITS, with a small copy to the device in between, and then a large one */
    IDLE,      /* the host is busy before it waits, while the GPU has nothing to do */
    STREAMS,   /* work in three more streams at once, and a wait for the device */
    DEFAULTS,  /* work in the default streams */
    EVENTS,    /* a wait for an event after the work */
    ELSEWHERE, /* like EVENTS, but another thread waits */
    /* Two threads take turns to launch into one stream. The other thread makes the last launch before
     * the wait, and the last one after it. */
    TURNS,
    REFUSED,   /* a launch that the driver refuses, both in a separate stream and in the usual one */
    CONTEXTS,  /* work in the contexts of two devices */
    FRESH,     /* each step has a new stream, which is destroyed before the wait */
    ENDS,      /* in step 5, a context is destroyed whose work was not waited for */
    RESETS,    /* the device is reset in step 5 */
    MANY,      /* work in very many streams */
    PIPELINED, /* no wait until the end */
    CAPTURED,  /* another thread captures in steps 5 to 7 */
    FORKED     /* a child is forked in step 5 */
};
static const char *const HOWS[] = {"plain",    "waits", "copies", "idle",  "streams", "defaults",
                                   "events",   "elsewhere", "turns", "refused", "contexts", "fresh", "ends",
                                   "resets",   "many",  "pipelined", "captured", "forked", NULL};

enum { KERNELS = 3, TURNS_A_STEP = 40, STREAMS_AT_ONCE = 3, VERY_MANY = 700, MILLISECOND = 1000000,
       SMALL = 64 << 10 };

static struct loop loop;
static gpu_stream streams[VERY_MANY];
static gpu_event event;
static CUcontext other_context;
static gpu_stream other_stream;
static gpu_buffer other_words, large_words;
static int pieces;

static void print_pieces(int step)
{
    printf("%d %d\n", step, pieces);
    pieces = 0;
}

static void launch(gpu_buffer words, gpu_stream stream, int kernels)
{
    for (int i = 0; i < kernels; i++)
        gpu_launch_kernel(words, stream);
    pieces += kernels;
}

static void launch_graph(gpu_stream stream)
{
    gpu_launch_graph(loop.graph, stream);
    pieces += KERNELS_IN_GRAPH;
}

static void in_other_context(void (*act)(void))
{
    CUcontext ours;
    GPU_CHECK(cuCtxPushCurrent(other_context));
    act();
    GPU_CHECK(cuCtxPopCurrent(&ours));
}

static void prepare_other(void)
{
    static const uint64_t zero[2] = {0, 0};
    other_stream = gpu_stream_create();
    other_words = gpu_allocate(sizeof zero);
}

static void work_in_other(void)
{
    launch(other_words, other_stream, KERNELS);
}

/* Semaphores for requests to the other thread (`asked`) and for its answers (`done`), and the
 * stream that the other thread captures. */
static sem_t asked, done;
static gpu_stream captured;
static int spoilt;

static void have_done(void)
{
    sem_post(&asked);
    sem_wait(&done);
}

static void *capture(void *unused)
{
    gpu_graph graph = NULL;
    gpu_use();
    captured = gpu_stream_create();
    sem_wait(&asked);
    gpu_begin_capture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
    gpu_launch_kernel(loop.words, captured);
    sem_post(&done);
    sem_wait(&asked);
    gpu_launch_kernel(loop.words, captured);
    spoilt = gpu_end_capture(captured, &graph);
    sem_post(&done);
    return unused;
}

static bool leaves;

static void *wait_for_events(void *unused)
{
    gpu_use();
    for (sem_wait(&asked); !leaves; sem_wait(&asked)) {
        gpu_wait_event(event);
        sem_post(&done);
    }
    return unused;
}

static void *launch_in_turn(void *unused)
{
    gpu_use();
    for (sem_wait(&asked); !leaves; sem_wait(&asked)) {
        launch(loop.words, loop.stream, 1);
        sem_post(&done);
    }
    return unused;
}

static void step(enum how how, int n)
{
    int kernels = KERNELS;
    switch (how) {
    case WAITS:
        launch_graph(loop.stream);
        print_pieces(n);
        gpu_wait_stream(loop.stream);
        standin_pass(MILLISECOND);
        launch(loop.words, loop.stream, KERNELS);
        break;
    case COPIES: {
        static char large[2 * SMALL];
        launch_graph(loop.stream);
        print_pieces(n);
        gpu_wait_stream(loop.stream);
        gpu_copy_in(large_words, large, SMALL - 1, loop.stream);
        pieces = 1;
        print_pieces(-1);
        gpu_wait_stream(loop.stream);
        standin_pass(MILLISECOND);
        gpu_copy_in(large_words, large, sizeof large, loop.stream);
        pieces = 1;
        launch(loop.words, loop.stream, KERNELS);
        break;
    }
    case TURNS:
        launch_graph(loop.stream);
        for (int i = 0; i < TURNS_A_STEP; i++) {
            launch(loop.words, loop.stream, 1);
            have_done();
        }
        print_pieces(n);
        gpu_wait_stream(loop.stream);
        standin_pass(MILLISECOND);
        launch(loop.words, loop.stream, 1);
        have_done();
        break;
    case IDLE:
        launch_graph(loop.stream);
        launch(loop.words, loop.stream, KERNELS);
        print_pieces(n);
        standin_pass(MILLISECOND);
        break;
    case STREAMS:
        launch_graph(loop.stream);
        for (int i = 0; i < STREAMS_AT_ONCE; i++)
            launch(loop.words, streams[i], i + 1);
        break;
    case REFUSED:
        launch_graph(loop.stream);
        for (int i = 0; i < 2; i++)
            if (cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, i == 0 ? streams[0] : loop.stream, NULL,
                               NULL) == CUDA_SUCCESS)
                exit(4);
        launch(loop.words, loop.stream, KERNELS);
        break;
    case DEFAULTS:
        launch_graph(loop.stream);
        launch(loop.words, n % 2 == 0 ? CU_STREAM_PER_THREAD : NULL, KERNELS);
        break;
    case CONTEXTS:
        launch_graph(loop.stream);
        in_other_context(work_in_other);
        print_pieces(n);
        in_other_context(gpu_wait_device);
        break;
    case FRESH:
        launch_graph(loop.stream);
        streams[0] = gpu_stream_create();
        launch(loop.words, streams[0], KERNELS);
        gpu_stream_destroy(streams[0]);
        break;
    case ENDS:
        launch_graph(loop.stream);
        if (n <= 5)
            in_other_context(work_in_other);
        if (n == 5)
            GPU_CHECK(cuCtxDestroy(other_context));
        break;
    case RESETS:
        launch_graph(loop.stream);
        if (n == 5) {
            struct loop_options options = loop_defaults();
            print_pieces(n);
            GPU_CHECK(cuDevicePrimaryCtxReset(0));
            loop_open(&loop, &options);
            pieces = 1; /* loop_open() copies data to the device */
            print_pieces(-1);
        }
        break;
    case MANY:
        launch_graph(loop.stream);
        for (int i = 0; i < VERY_MANY; i++)
            launch(loop.words, streams[i], 1);
        break;
    default:
        launch_graph(loop.stream);
        launch(loop.words, loop.stream, kernels);
    }
    if (pieces > 0)
        print_pieces(n);
    if (how == CAPTURED && (n == 5 || n == 7))
        have_done();
    if (how == FORKED && n == 5) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (wait_for(child) != 0)
            exit(4);
    }
    switch (how) {
    case PIPELINED:
        break;
    case EVENTS:
        gpu_record(event, loop.stream);
        gpu_wait_event(event);
        break;
    case ELSEWHERE:
        gpu_record(event, loop.stream);
        have_done();
        break;
    case PLAIN:
    case WAITS:
    case TURNS:
    case IDLE:
    case CAPTURED:
    case FORKED:
        gpu_wait_stream(loop.stream);
        break;
    default:
        gpu_wait_device();
    }
}

int main(int count, char **arguments)
{
    struct loop_options options = loop_defaults();
    pthread_t thread;
    program_begin();
    if (count < 3)
        return 2;
    enum how how = (enum how)choose("HOW", arguments[1], HOWS);
    int steps = atoi(arguments[2]);
    loop_open(&loop, &options);
    pieces = 1; /* loop_open() copies data to the device */
    print_pieces(-1);
    event = gpu_event_create();
    if (how == COPIES)
        large_words = gpu_allocate(2 * SMALL);
    if (how == STREAMS || how == REFUSED || how == MANY)
        for (int i = 0; i < (how == MANY ? VERY_MANY : STREAMS_AT_ONCE); i++)
            streams[i] = gpu_stream_create();
    if (how == CONTEXTS) {
        GPU_CHECK(cuDevicePrimaryCtxRetain(&other_context, 1));
        in_other_context(prepare_other);
    }
    if (how == ENDS) {
        CUcontext ours;
        GPU_CHECK(cuCtxCreate_v2(&other_context, 0, 0));
        prepare_other();
        GPU_CHECK(cuCtxPopCurrent(&ours));
    }
    sem_init(&asked, 0, 0);
    sem_init(&done, 0, 0);
    if (how == CAPTURED && pthread_create(&thread, NULL, capture, NULL) != 0)
        return 3;
    if (how == ELSEWHERE && pthread_create(&thread, NULL, wait_for_events, NULL) != 0)
        return 3;
    if (how == TURNS && pthread_create(&thread, NULL, launch_in_turn, NULL) != 0)
        return 3;
    for (int n = 0; n < steps; n++)
        step(how, n);
    leaves = true;
    sem_post(&asked);
    if (how == CAPTURED || how == ELSEWHERE || how == TURNS)
        pthread_join(thread, NULL);
    fflush(stdout);
    return spoilt != 0 ? 4 : 7;
}
