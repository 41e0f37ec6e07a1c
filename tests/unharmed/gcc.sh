# Runs the compiler, with the processes that it starts, and programs built by it. The programs use
# threads, dlopen and exceptions. One compilation fails.
cat > main.c << 'C'
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
static __thread int own;
static void *work(void *sum) {
    for (own = 0; own < 1000; own++) __atomic_add_fetch((long *)sum, own, __ATOMIC_RELAXED);
    return NULL;
}
int main(void) {
    long sum = 0;
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, work, &sum);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    errno = 0;
    void *part = dlopen("./part.so", RTLD_NOW | RTLD_LOCAL);
    int (*answer)(void) = (int (*)(void))dlsym(part, "answer");
    printf("%ld %d %d\n", sum, answer(), errno);
    printf("%p\n", dlsym(part, "missing"));
    printf("%s\n", dlerror());
    printf("%d %s\n", dlsym(RTLD_DEFAULT, "cuGraphLaunch") == NULL, dlerror() != NULL ? "error" : "none");
    dlclose(part);
    printf("%d\n", dlopen("./absent.so", RTLD_NOW) == NULL);
    printf("%s\n", dlerror());
    return 42;
}
C
sed -i '/RTLD_DEFAULT/d' main.c
echo 'int answer(void) { return 41; }' > part.c
gcc -shared -fPIC part.c -o part.so && gcc -O2 main.c -o main -pthread -ldl && ./main
echo "main: $?"
gcc -O2 -fno-plt -Wl,-z,now main.c -o now -pthread -ldl && ./now
echo "now: $?"
echo 'int main(void) { return missing; }' > wrong.c
gcc wrong.c -o wrong; echo "wrong: $?"
command -v g++ > /dev/null || exit 0
cat > main.cc << 'C'
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>
int main() {
    std::vector<std::thread> threads;
    int caught[4] = {};
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&caught, i] {
            try { throw std::runtime_error("thrown"); } catch (const std::exception &) { caught[i] = 1; }
        });
    for (auto &thread : threads) thread.join();
    std::printf("%d\n", caught[0] + caught[1] + caught[2] + caught[3]);
    throw 3;
}
C
ulimit -c 0
g++ -O2 main.cc -o cc -pthread || exit
# The shell's own message contains the process id, so it is dropped.
{ ./cc 2> said; } 2> /dev/null; echo "uncaught: $?"; cat said
