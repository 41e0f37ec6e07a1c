// llama_loop MODEL single [ROUNDS [TIMES] | --blocks] | parallel: a decode loop with llama.cpp. An iteration is one
// call of llama_decode.
//
// single: in each of ROUNDS rounds (default: 2), decodes a prompt and then one token at a time. TIMES: a file that gets
// the time when each llama_decode began, in ns, as 64-bit numbers. --blocks: makes whole rounds on request. Each line
// of standard input is a number of seconds. For each, prints the number of steps, their duration, their processor time,
// and the median step.
// parallel: decodes up to eight sequences at a time, which begin and end at different times. For each of them, a batch
// has one token, or the whole prompt if the sequence begins with this batch.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"
#ifdef TRUTH
#include "truth.h"
#endif

static int vocabulary;
static std::vector<int64_t> began;

static void mark(long n) {
#ifdef TRUTH
    truth(n);
#else
    static auto *function = reinterpret_cast<void (*)(long)>(dlsym(RTLD_DEFAULT, "tllmprof_mark"));
    if (function) function(n);
#endif
}

static void add(llama_batch &batch, llama_token token, int position, int sequence, bool read) {
    int at = batch.n_tokens++;
    batch.token[at] = token;
    batch.pos[at] = position;
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = sequence;
    batch.logits[at] = read;
}

static llama_token best(llama_context *context, int at) {
    const float *logits = llama_get_logits_ith(context, at);
    int token = 0;
    for (int i = 1; i < vocabulary; i++)
        if (logits[i] > logits[token]) token = i;
    return token;
}

static double now(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void decode(llama_context *context, const llama_batch &batch) {
    static long iteration;
    mark(iteration++);
    began.push_back((int64_t)(now(CLOCK_MONOTONIC) * 1e9));
    if (llama_decode(context, batch) != 0) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
}

static long single(llama_context *context, llama_batch &batch, int rounds, int steps = 100) {
    long sum = 0;
    for (int round = 0; round < rounds; round++) {
        llama_memory_seq_rm(llama_get_memory(context), 0, -1, -1);
        int position = 0;
        batch.n_tokens = 0;
        while (position < 40) {
            add(batch, rand() % vocabulary, position, 0, position == 39);
            position++;
        }
        decode(context, batch);
        for (int i = 1; i < steps; i++) {
            llama_token token = best(context, batch.n_tokens - 1);
            sum += token;
            batch.n_tokens = 0;
            add(batch, token, position++, 0, true);
            decode(context, batch);
        }
    }
    return sum;
}

static long serve_blocks(llama_context *context, llama_batch &batch) {
    double seconds;
    long sum = single(context, batch, 1);  // the first round captures the CUDA graph
    puts("ready");
    fflush(stdout);
    while (scanf("%lf", &seconds) == 1) {
        // the first steps after the sleep are not measured, because they warm up the caches and
        // raise the GPU's clocks
        sum += single(context, batch, 1, 20);
        began.clear();
        double used = now(CLOCK_PROCESS_CPUTIME_ID), start = now(CLOCK_MONOTONIC), elapsed;
        do sum += single(context, batch, 1);
        while ((elapsed = now(CLOCK_MONOTONIC) - start) < seconds);
        used = now(CLOCK_PROCESS_CPUTIME_ID) - used;
        std::vector<int64_t> took;
        for (size_t i = 1; i < began.size(); i++) took.push_back(began[i] - began[i - 1]);
        std::nth_element(took.begin(), took.begin() + took.size() / 2, took.end());
        printf("%zu %.9f %.9f %.9f\n", began.size(), elapsed, used, took[took.size() / 2] * 1e-9);
        fflush(stdout);
    }
    return sum;
}

struct sequence {
    int position = 0, left = 0;
    int at = 0;  // index of the sequence's logits in the last batch
};

static long parallel(llama_context *context, llama_batch &batch) {
    std::vector<sequence> sequences(8);
    long sum = 0;
    for (int step = 0; step < 200; step++) {
        std::vector<llama_token> next(sequences.size());
        for (size_t i = 0; i < sequences.size(); i++)
            if (sequences[i].left > 0) sum += next[i] = best(context, sequences[i].at);
        batch.n_tokens = 0;
        for (size_t i = 0; i < sequences.size(); i++) {
            sequence &one = sequences[i];
            if (one.left-- > 0) {
                one.at = batch.n_tokens;
                add(batch, next[i], one.position++, i, true);
            } else if (batch.n_tokens == 0 || rand() % 8 == 0) {
                llama_memory_seq_rm(llama_get_memory(context), i, -1, -1);
                int prompt = 4 + rand() % 30;
                for (one.position = 0; one.position < prompt; one.position++)
                    add(batch, rand() % vocabulary, one.position, i, one.position == prompt - 1);
                one.at = batch.n_tokens - 1;
                one.left = 10 + rand() % 60;
            } else {
                one.left = 0;
            }
        }
        decode(context, batch);
    }
    return sum;
}

int main(int count, char **words) {
    if (count < 3 || count > 5) return 2;
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
    }, nullptr);
    ggml_backend_load_all();
    llama_backend_init();
    llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 99;
    llama_model *model = llama_model_load_from_file(words[1], of_model);
    if (!model) return 1;
    vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params of_context = llama_context_default_params();
    bool many = strcmp(words[2], "parallel") == 0;
    of_context.n_ctx = 2048;
    of_context.n_batch = of_context.n_ubatch = 512;
    of_context.n_seq_max = many ? 8 : 1;
    of_context.kv_unified = true;
    of_context.n_threads = of_context.n_threads_batch = 1;
    llama_context *context = llama_init_from_model(model, of_context);
    if (!context) return 1;
    llama_batch batch = llama_batch_init(512, 0, 1);
    bool blocks = count == 4 && strcmp(words[3], "--blocks") == 0;
    long sum = many ? parallel(context, batch) : blocks ? serve_blocks(context, batch) : single(context, batch, count >= 4 ? atoi(words[3]) : 2);
    if (FILE *file = count == 5 ? fopen(words[4], "wb") : nullptr) {
        fwrite(began.data(), sizeof began[0], began.size(), file);
        fclose(file);
    }
    printf("llama_loop %s %ld\n", words[2], sum);
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
