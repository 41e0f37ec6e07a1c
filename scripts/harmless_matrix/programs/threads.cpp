// Tests threads: exceptions in them, thread-local destructors, cancellation, and forks while other threads run.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::atomic<int> destroyed;
struct Counted {
    int n = 0;
    ~Counted() { destroyed++; }
};
static thread_local Counted counted;
static std::mutex mutex;
static std::map<std::string, int> shared;

static int work(int n)
{
    counted.n = n;
    std::vector<std::unique_ptr<std::string>> all;
    for (int i = 0; i < 200; i++)
        all.push_back(std::make_unique<std::string>(std::to_string(i * n)));
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto &one : all)
        shared[*one]++;
    if (n % 3 == 0)
        throw std::runtime_error("thread " + std::to_string(n));
    return counted.n;
}

static void *sleeps(void *)
{
    for (;;)
        pause();
}

int main()
{
    int sum = 0, thrown = 0;
    for (int round = 0; round < 10; round++) {
        std::vector<std::future<int>> futures;
        for (int n = 0; n < 8; n++)
            futures.push_back(std::async(std::launch::async, work, n));
        for (auto &future : futures)
            try {
                sum += future.get();
            } catch (const std::runtime_error &error) {
                thrown++;
            }
    }
    pthread_t id;
    void *result = nullptr;
    pthread_create(&id, nullptr, sleeps, nullptr);
    pthread_cancel(id);
    pthread_join(id, &result);
    int forked = 0;
    for (int n = 0; n < 5; n++) {
        const pid_t child = fork();
        if (child == 0)
            _exit(n);
        int status = 0;
        waitpid(child, &status, 0);
        forked += WEXITSTATUS(status);
    }
    std::printf("sum %d thrown %d destroyed %d keys %zu cancelled %d forked %d\n", sum, thrown, destroyed.load(),
                shared.size(), result == PTHREAD_CANCELED, forked);
    return 5;
}
