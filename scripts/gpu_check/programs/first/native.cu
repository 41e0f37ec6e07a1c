// native NAME: small loops like those of an inference server. Each NAME is slow for one reason, or for none
// (programs.txt). The last line of output is JSON with the process ID and the time when each step began. The program
// contains no code for a profiler.
#include <cuda_runtime.h>
#include <nvrtc.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION static __attribute__((noinline))
#define CHECK(call) check(call, #call)

static const int BLOCKS = 132, THREADS = 256, ROUNDS_PER_US = 400;
static const int VOCABULARY = 128000, MAX_STEPS = 1 << 20;

static cudaStream_t stream;
static float *activations;
static std::vector<long long> began;
static volatile long sink;

static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static long long clock_ns(clockid_t clock)
{
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Returns true if the program has time for another step, and stores the time when this step begins. Otherwise, returns
// false.
static bool next_step()
{
    static long long end;
    long long now = clock_ns(CLOCK_MONOTONIC);
    if (end == 0) {
        const char *seconds = getenv("SECONDS_EACH");
        end = now + (long long)(1e9 * (seconds ? atof(seconds) : 8));
        began.reserve(MAX_STEPS);
    }
    if (now < end)
        began.push_back(now);
    return now < end;
}

// A kernel that multiplies and adds in each thread. The GPU takes about 1 µs for ROUNDS_PER_US rounds.
__global__ void layer(float *x, int rounds)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = x[i];
    for (int round = 0; round < rounds; round++)
        value = fmaf(value, 0.999f, 0.001f);
    x[i] = value;
}

static void run_layers(int count, int us, cudaStream_t on)
{
    for (int i = 0; i < count; i++)
        layer<<<BLOCKS, THREADS, 0, on>>>(activations, us * ROUNDS_PER_US);
    CHECK(cudaGetLastError());
}

static void forward(int count, int us)
{
    run_layers(count, us, stream);
    CHECK(cudaStreamSynchronize(stream));
}

static cudaGraphExec_t capture(int count, int us)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run_layers(count, us, stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return executable;
}

// ---- programs that are slow because of sleeps or locks

FUNCTION void poll_scheduler()
{
    usleep(5000);
    sink = sink + 1;
}

static void native_polling()
{
    while (next_step()) {
        poll_scheduler();
        forward(8, 500);
    }
}

// Waits for more requests to fill the batch. No more requests come, so the wait always lasts until
// its time limit.
FUNCTION void fill_batch(std::mutex &lock, std::condition_variable &arrived)
{
    std::unique_lock<std::mutex> held(lock);
    arrived.wait_for(held, std::chrono::milliseconds(6));
    sink = sink + 1;
}

static void native_batch_timer()
{
    std::mutex lock;
    std::condition_variable arrived;
    while (next_step()) {
        fill_batch(lock, arrived);
        forward(8, 500);
    }
}

static std::mutex statistics;

FUNCTION void update_statistics()
{
    std::lock_guard<std::mutex> held(statistics);
    sink = sink + 1;
}

static void native_statistics_lock()
{
    std::thread([] {
        for (;;) {
            {
                std::lock_guard<std::mutex> held(statistics);
                usleep(7000);  // stands for a request that sends the statistics to another host
            }
            usleep(1000);
        }
    }).detach();
    while (next_step()) {
        update_statistics();
        forward(8, 500);
    }
}

// ---- programs that wait for work: this wait is not a fault

static std::mutex queue_lock;
static std::condition_variable queue_grew;
static int queued;

FUNCTION void next_request()
{
    std::unique_lock<std::mutex> held(queue_lock);
    queue_grew.wait(held, [] { return queued > 0; });
    queued--;
}

FUNCTION void make_batches()
{
    for (;;) {
        usleep(15000);  // stands for a slow disk
        std::lock_guard<std::mutex> held(queue_lock);
        queued++;
        queue_grew.notify_one();
    }
}

static void native_batch_queue()
{
    std::thread(make_batches).detach();
    for (;;) {
        next_request();
        if (!next_step())
            return;
        forward(8, 400);
    }
}

FUNCTION int read_request(int from)
{
    pollfd ready = {from, POLLIN, 0};
    int request = 0;
    if (poll(&ready, 1, -1) != 1 || read(from, &request, sizeof request) != sizeof request)
        exit(1);
    return request;
}

static void native_request_pipe()
{
    int ends[2];
    if (pipe(ends) != 0)
        exit(1);
    // The client's parent ends at once, so the client is not a child of this process. The client ends by SIGPIPE after
    // this process has ended.
    pid_t starter = fork();
    if (starter == 0) {
        if (fork() != 0)
            _exit(0);
        close(ends[0]);
        for (int request = 1;; request++) {
            usleep(12000);
            if (write(ends[1], &request, sizeof request) < 0)
                _exit(0);
        }
    }
    waitpid(starter, NULL, 0);
    for (;;) {
        sink = read_request(ends[0]);
        if (!next_step())
            return;
        forward(8, 400);
    }
}

// ---- programs that are slow because of busy functions on the host

FUNCTION void tokenise_prompts(const std::string &text)
{
    static std::unordered_map<std::string, int> vocabulary;
    std::vector<int> tokens;
    for (size_t at = 0; at + 5 < text.size(); at++) {
        auto found = vocabulary.emplace(text.substr(at, 3 + at % 3), (int)vocabulary.size());
        tokens.push_back(found.first->second);
    }
    sink = (long)tokens.size();
}

static std::string some_text(size_t length)
{
    std::mt19937 random(1);
    std::string text(length, ' ');
    for (char &c : text)
        c = "etaoin srhl"[random() % 11];
    return text;
}

static void native_tokenising()
{
    std::string text = some_text(60000);
    while (next_step()) {
        tokenise_prompts(text);
        forward(8, 400);
    }
}

FUNCTION int apply_penalties(const float *logits, const std::vector<float> &penalties, int sequences)
{
    int best = 0;
    for (int s = 0; s < sequences; s++) {
        std::vector<float> scores(logits, logits + VOCABULARY);
        for (int t = 0; t < VOCABULARY; t++)
            scores[t] = scores[t] > 0 ? scores[t] / penalties[(t + s) % VOCABULARY] : scores[t] * penalties[t];
        std::partial_sort(scores.begin(), scores.begin() + 40, scores.end(), std::greater<float>());
        best += scores[39] > 0.5f;
    }
    return best;
}

static void native_penalties()
{
    float *logits, *on_gpu;
    CHECK(cudaMallocHost(&logits, VOCABULARY * sizeof *logits));
    CHECK(cudaMalloc(&on_gpu, VOCABULARY * sizeof *logits));
    CHECK(cudaMemset(on_gpu, 0, VOCABULARY * sizeof *logits));
    std::vector<float> penalties(VOCABULARY, 1.1f);
    while (next_step()) {
        run_layers(8, 400, stream);
        CHECK(cudaMemcpyAsync(logits, on_gpu, VOCABULARY * sizeof *logits, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        sink = apply_penalties(logits, penalties, 16);
    }
}

FUNCTION void check_stop_words(const std::string &text)
{
    static const std::regex stop("(</s>|\\buser:|\\bassistant:|r{3,}o+n)");
    sink = std::regex_search(text, stop);
}

static void native_stop_words()
{
    std::string text = some_text(20000);
    while (next_step()) {
        forward(8, 400);
        check_stop_words(text);
    }
}

// Computes over the whole cache, which takes several milliseconds. Called in one step of ten.
FUNCTION void compact_cache(std::vector<long> &blocks)
{
    for (size_t pass = 0; pass < 12; pass++)
        for (size_t i = 1; i < blocks.size(); i++)
            blocks[i] = blocks[i - 1] * 31 + blocks[i] + (long)pass;
    sink = blocks.back();
}

static void native_cache_compaction()
{
    std::vector<long> blocks(2000000, 1);
    for (int step = 0; next_step(); step++) {
        if (step % 10 == 9)
            compact_cache(blocks);
        forward(8, 400);
    }
}

// Works so long that a step takes about half a second.
FUNCTION void rerank_candidates(std::vector<double> &scores)
{
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < scores.size(); i++)
            scores[i] = (double)((i * 2654435761u + (size_t)pass) % 1000003);
        std::sort(scores.begin(), scores.end());
    }
    sink = (long)scores[scores.size() / 2];
}

static void native_reranking()
{
    std::vector<double> scores(1500000);
    while (next_step()) {
        rerank_candidates(scores);
        forward(40, 4000);
    }
}

FUNCTION void compile_for_shape(int length)
{
    std::string source = "extern \"C\" __global__ void scale(float *x) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                         "if (i < " + std::to_string(length) + ") x[i] = tanhf(x[i]) * " + std::to_string(length) + "; }";
    nvrtcProgram program;
    size_t size = 0;
    if (nvrtcCreateProgram(&program, source.c_str(), "scale.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS ||
        nvrtcCompileProgram(program, 0, nullptr) != NVRTC_SUCCESS || nvrtcGetPTXSize(program, &size) != NVRTC_SUCCESS)
        exit(1);
    std::string ptx(size, 0);
    nvrtcGetPTX(program, &ptx[0]);
    nvrtcDestroyProgram(&program);
    cudaLibrary_t library;
    cudaKernel_t kernel;
    CHECK(cudaLibraryLoadData(&library, ptx.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cudaLibraryGetKernel(&kernel, library, "scale"));
    void *arguments[] = {&activations};
    CHECK(cudaLaunchKernel((const void *)kernel, dim3(BLOCKS), dim3(THREADS), arguments, 0, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaLibraryUnload(library));
}

static void native_new_shapes()
{
    for (int length = 64; next_step(); length++) {
        run_layers(8, 400, stream);
        compile_for_shape(length);
    }
}

// ---- programs that are slow because of waits or copies within a step

FUNCTION void check_layer(const std::vector<float> &expected)
{
    float total = 0;
    for (float one : expected)
        total = total * 0.5f + one;
    sink = (long)total;
}

static void native_layer_waits()
{
    std::vector<float> expected(20000, 1.0f);
    while (next_step()) {
        check_layer(std::vector<float>(100000, 2.0f));  // the host makes the batch before it launches the step
        for (int i = 0; i < 16; i++) {
            forward(2, 40);
            check_layer(expected);
        }
    }
}

FUNCTION int route_tokens(const int *experts)
{
    int chosen = 0;
    CHECK(cudaMemcpy(&chosen, experts, sizeof chosen, cudaMemcpyDeviceToHost));
    return chosen;
}

static void native_router_reads()
{
    int *experts;
    CHECK(cudaMalloc(&experts, sizeof *experts));
    CHECK(cudaMemset(experts, 0, sizeof *experts));
    std::vector<float> expected(20000, 1.0f);
    CHECK(cudaStreamDestroy(stream));
    stream = nullptr;  // from here on, kernels run on the default stream, for which cudaMemcpy waits
    while (next_step()) {
        check_layer(std::vector<float>(100000, 2.0f));
        for (int i = 0; i < 12; i++) {
            run_layers(2, 40, stream);
            sink = route_tokens(experts);
            check_layer(expected);
        }
    }
}

static void native_pageable_batch()
{
    const size_t bytes = 64 << 20;
    std::vector<char> batch(bytes, 1);
    void *on_gpu;
    CHECK(cudaMalloc(&on_gpu, bytes));
    while (next_step()) {
        CHECK(cudaMemcpyAsync(on_gpu, batch.data(), bytes, cudaMemcpyHostToDevice, stream));
        forward(8, 300);
    }
}

static void native_small_copies()
{
    std::vector<std::vector<int>> tokens(400, std::vector<int>(64, 7));
    int *on_gpu;
    CHECK(cudaMalloc(&on_gpu, tokens.size() * 64 * sizeof *on_gpu));
    while (next_step()) {
        for (size_t i = 0; i < tokens.size(); i++)
            CHECK(cudaMemcpyAsync(on_gpu + 64 * i, tokens[i].data(), 64 * sizeof(int), cudaMemcpyHostToDevice, stream));
        forward(4, 300);
    }
}

static void native_workspaces()
{
    while (next_step()) {
        void *workspace[2];
        for (void *&one : workspace)
            CHECK(cudaMalloc(&one, 512 << 20));
        forward(4, 300);
        for (void *one : workspace)
            CHECK(cudaFree(one));
    }
}

// ---- programs that are slow because of small kernels or repeated captures

static void native_tiny_kernels()
{
    while (next_step())
        forward(1500, 0);
}

// In one step of eight, captures a new graph, like an engine that needs another graph because a
// sequence has become longer.
static void native_recaptures()
{
    cudaGraphExec_t graph = nullptr;
    for (int step = 0; next_step(); step++) {
        if (step % 8 == 0) {
            if (graph)
                CHECK(cudaGraphExecDestroy(graph));
            graph = capture(400 + step % 5, 4);
        }
        CHECK(cudaGraphLaunch(graph, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
}

// ---- programs that are slow because of other processes, page faults or the disk

// Starts three other processes that are busy on one processor, and lets this thread run only on the same processor.
static void native_neighbours()
{
    int first = sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    pid_t neighbours[3];
    for (pid_t &neighbour : neighbours) {
        neighbour = fork();
        if (neighbour == 0) {
            sched_setaffinity(0, sizeof one, &one);
            for (long long end = clock_ns(CLOCK_MONOTONIC) + 60000000000LL; clock_ns(CLOCK_MONOTONIC) < end;)
                ;
            _exit(0);
        }
    }
    forward(1, 1);  // before the other processors are forbidden, the driver starts its threads on them
    sched_setaffinity(0, sizeof one, &one);
    while (next_step()) {
        // Works until the thread has used 4 ms of processor time in this step. Waiting for the processor does not
        // count.
        for (long long end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + 4000000; clock_ns(CLOCK_THREAD_CPUTIME_ID) < end;)
            ;
        forward(20, 500);
    }
    for (pid_t neighbour : neighbours) {
        kill(neighbour, SIGKILL);
        waitpid(neighbour, nullptr, 0);
    }
}

// Allocates new memory in each step. Even with huge pages, the memory's first use causes about a hundred page
// faults.
FUNCTION void build_mask(size_t length)
{
    char *mask = (char *)malloc(length);
    memset(mask, 1, length);
    // otherwise the compiler would remove the allocation, whose contents nothing reads
    asm volatile("" ::"r"(mask) : "memory");
    free(mask);
    sink = sink + 1;
}

static void native_masks()
{
    while (next_step()) {
        build_mask(144 << 20);
        forward(8, 400);
    }
}

FUNCTION void append_journal(int journal, const std::string &entry)
{
    if (write(journal, entry.data(), entry.size()) < 0 || fsync(journal) != 0)
        exit(1);
    if (lseek(journal, 0, SEEK_CUR) > (1 << 28) && (ftruncate(journal, 0) != 0 || lseek(journal, 0, SEEK_SET) != 0))
        exit(1);
}

static void native_journal()
{
    int journal = open("journal", O_CREAT | O_RDWR | O_TRUNC, 0600);
    std::string entry(4 << 20, 'x');
    while (next_step()) {
        append_journal(journal, entry);
        forward(8, 400);
    }
    unlink("journal");
}

// Reads a file from the disk. Before that, drops the file from the kernel's page cache, so that the
// read does not find it in memory.
FUNCTION void load_adapter(int adapter, std::vector<char> &weights)
{
    posix_fadvise(adapter, 0, 0, POSIX_FADV_DONTNEED);
    if (pread(adapter, weights.data(), weights.size(), 0) != (ssize_t)weights.size())
        exit(1);
    sink = weights[7];
}

static void native_adapters()
{
    int adapter = open("adapter", O_CREAT | O_RDWR | O_TRUNC, 0600);
    std::vector<char> weights(32 << 20, 1);
    if (write(adapter, weights.data(), weights.size()) < 0 || fsync(adapter) != 0)
        exit(1);
    while (next_step()) {
        load_adapter(adapter, weights);
        forward(8, 400);
    }
    unlink("adapter");
}

// ---- programs without a fault

// Copies the next batch to the GPU while the present one is processed. The host waits for the step before the
// previous one.
static void native_double_buffer()
{
    const size_t bytes = 4 << 20;
    char *batches[2], *on_gpu[2];
    cudaStream_t copies;
    cudaEvent_t copied[2], done[2];
    CHECK(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        CHECK(cudaMallocHost(&batches[i], bytes));
        CHECK(cudaMalloc(&on_gpu[i], bytes));
        CHECK(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
    }
    for (int step = 0; next_step(); step++) {
        int i = step % 2;
        CHECK(cudaEventSynchronize(done[i]));
        memset(batches[i], step, bytes / 8);
        CHECK(cudaMemcpyAsync(on_gpu[i], batches[i], bytes, cudaMemcpyHostToDevice, copies));
        CHECK(cudaEventRecord(copied[i], copies));
        CHECK(cudaStreamWaitEvent(stream, copied[i], 0));
        run_layers(10, 500, stream);
        CHECK(cudaEventRecord(done[i], stream));
    }
    CHECK(cudaDeviceSynchronize());
}

static void native_long_graphs()
{
    cudaGraphExec_t graph = capture(20, 250);
    while (next_step()) {
        CHECK(cudaGraphLaunch(graph, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
}

// Never waits for the GPU. When the GPU's queue is full, a launch blocks until there is room.
static void native_no_waits()
{
    const size_t bytes = 1 << 20;
    void *batch, *on_gpu;
    CHECK(cudaMallocHost(&batch, bytes));
    CHECK(cudaMalloc(&on_gpu, bytes));
    while (next_step()) {
        CHECK(cudaMemcpyAsync(on_gpu, batch, bytes, cudaMemcpyHostToDevice, stream));
        run_layers(20, 150, stream);
    }
    CHECK(cudaStreamSynchronize(stream));
}

// Works on the host while the GPU works. Other threads work at the same time.
static void native_overlapped()
{
    for (int i = 0; i < 2; i++)
        std::thread([] {
            std::string text = some_text(60000);
            for (size_t start = 0;; start++)
                sink = (long)std::count(text.begin(), text.end(), "etaoin"[start % 6]);
        }).detach();
    std::vector<float> expected(1000000, 1.0f);
    while (next_step()) {
        run_layers(12, 500, stream);
        check_layer(expected);
        CHECK(cudaStreamSynchronize(stream));
    }
}

#define PROGRAM(name) {#name, name}
static const std::map<std::string, void (*)()> PROGRAMS = {
    PROGRAM(native_polling),       PROGRAM(native_batch_timer),      PROGRAM(native_statistics_lock),
    PROGRAM(native_batch_queue),   PROGRAM(native_request_pipe),     PROGRAM(native_tokenising),
    PROGRAM(native_penalties),     PROGRAM(native_stop_words),       PROGRAM(native_cache_compaction),
    PROGRAM(native_reranking),     PROGRAM(native_new_shapes),       PROGRAM(native_layer_waits),
    PROGRAM(native_router_reads),  PROGRAM(native_pageable_batch),   PROGRAM(native_small_copies),
    PROGRAM(native_workspaces),    PROGRAM(native_tiny_kernels),     PROGRAM(native_recaptures),
    PROGRAM(native_neighbours),    PROGRAM(native_masks),            PROGRAM(native_journal),
    PROGRAM(native_adapters),      PROGRAM(native_double_buffer),    PROGRAM(native_long_graphs),
    PROGRAM(native_no_waits),      PROGRAM(native_overlapped),
};

int main(int count, char **words)
{
    auto found = PROGRAMS.find(count == 2 ? words[1] : "");
    if (found == PROGRAMS.end()) {
        for (auto &one : PROGRAMS)
            fprintf(stderr, "%s\n", one.first.c_str());
        return 2;
    }
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&activations, BLOCKS * THREADS * sizeof *activations));
    CHECK(cudaMemset(activations, 0, BLOCKS * THREADS * sizeof *activations));
    CHECK(cudaDeviceSynchronize());
    found->second();
    printf("{\"pid\": %d, \"began\": [", (int)getpid());
    for (size_t i = 0; i < began.size(); i++)
        printf("%s%lld", i ? ", " : "", began[i]);
    printf("]}\n");
    fflush(stdout);
    _exit(0);  // exit() would destroy objects that detached threads still use
}
