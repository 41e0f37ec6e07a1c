/* A library that replaces functions of the C library, preloaded before or after the library under test. Network
 * stacks, tracers, allocators and fake clocks do this. Each of its functions uses memory that is freed when the
 * process ends, and takes a lock that is held during forks. It writes the calls by the tested library's threads into
 * the file FOREIGN_LOG. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 1 << 16 };
static char *table;
static volatile int lock;
static __thread int is_inside;

static long kernel(long number, long a, long b, long c, long d)
{
    long result;
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    result = x0;
#endif
    return result;
}

/* Logs a call of a replaced function if the caller is the library under test, on one of that library's own
 * threads. */
static void own_thread_calls(const char *function, void *caller)
{
    char name[16] = "", line[128];
    Dl_info module;
    kernel(SYS_prctl, PR_GET_NAME, (long)name, 0, 0);
    if (memcmp(name, "tllmprof", 8) != 0 || dladdr(caller, &module) == 0 || strstr(module.dli_fname, "libtllmprof") == NULL)
        return;
    const char *path = NULL;
    extern char **environ;
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "FOREIGN_LOG=", 12) == 0)
            path = *entry + 12;
    if (path == NULL)
        return;
    int length = snprintf(line, sizeof line, "%s by %s\n", function, name);
    long file = kernel(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    kernel(SYS_write, file, (long)line, length, 0);
    kernel(SYS_close, file, 0, 0, 0);
}

/* Runs in each replaced function. Uses memory that is freed when the process ends, so a later call would crash. */
static void use(const char *function, void *caller)
{
    if (is_inside)
        return;
    is_inside = 1;
    own_thread_calls(function, caller);
    if (table != NULL)
        ((volatile char *)table)[0]++;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE) != 0)
        ;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    is_inside = 0;
}

static void before_fork(void)
{
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE) != 0)
        ;
}

static void after_fork(void)
{
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void begin(void)
{
    table = (char *)syscall(SYS_mmap, 0L, (long)SIZE, (long)(PROT_READ | PROT_WRITE), (long)(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* Frees the memory that the replaced functions use, and then takes 50 ms, like a library that waits for its own
 * thread. After this, only the program's main thread may call them. */
__attribute__((destructor)) static void end(void)
{
    char *gone = table;
    is_inside = 1;
    kernel(SYS_mprotect, (long)gone, SIZE, PROT_NONE, 0);
    struct timespec moment = {0, 50 * 1000 * 1000};
    kernel(SYS_nanosleep, (long)&moment, 0, 0, 0);
}

/* Replaces the function NAME, which takes up to six integers or addresses. An assembler label
 * gives the replacement this name, because the headers declare the function with other types. */
#define REPLACE(NAME)                                                                                                      \
    long replaced_##NAME(long, long, long, long, long, long) __asm__(#NAME);                                               \
    long replaced_##NAME(long a, long b, long c, long d, long e, long f)                                                   \
    {                                                                                                                      \
        static long (*real)(long, long, long, long, long, long);                                                           \
        if (real == NULL)                                                                                                  \
            *(void **)&real = dlsym(RTLD_NEXT, #NAME);                                                                     \
        use(#NAME, __builtin_return_address(0));                                                                                                        \
        return real(a, b, c, d, e, f);                                                                                     \
    }

REPLACE(accept)
REPLACE(accept4)
REPLACE(bind)
REPLACE(clock_nanosleep)
REPLACE(close)
REPLACE(connect)
REPLACE(dup2)
REPLACE(fallocate)
REPLACE(fchmod)
REPLACE(fcntl)
REPLACE(flock)
REPLACE(fstat)
REPLACE(fstat64)
REPLACE(ftruncate)
REPLACE(ftruncate64)
REPLACE(getcwd)
REPLACE(getenv)
REPLACE(geteuid)
REPLACE(gethostname)
REPLACE(getrandom)
REPLACE(getrlimit)
REPLACE(getsockopt)
REPLACE(gettid)
REPLACE(ioctl)
REPLACE(listen)
REPLACE(lseek)
REPLACE(lseek64)
REPLACE(lstat)
REPLACE(lstat64)
REPLACE(madvise)
REPLACE(mkdir)
REPLACE(mmap)
REPLACE(mmap64)
REPLACE(mprotect)
REPLACE(munmap)
REPLACE(nanosleep)
REPLACE(open)
REPLACE(open64)
REPLACE(openat)
REPLACE(poll)
REPLACE(ppoll)
REPLACE(prctl)
REPLACE(pread)
REPLACE(pread64)
REPLACE(process_vm_readv)
REPLACE(pthread_create)
REPLACE(pthread_mutex_lock)
REPLACE(pthread_mutex_unlock)
REPLACE(pthread_sigmask)
REPLACE(pwrite)
REPLACE(pwrite64)
REPLACE(read)
REPLACE(readlink)
REPLACE(recv)
REPLACE(recvfrom)
REPLACE(rename)
REPLACE(sched_getaffinity)
REPLACE(sched_getcpu)
REPLACE(sched_yield)
REPLACE(send)
REPLACE(sendto)
REPLACE(shutdown)
REPLACE(sigaltstack)
REPLACE(sigpending)
REPLACE(sigtimedwait)
REPLACE(socket)
REPLACE(stat)
REPLACE(stat64)
REPLACE(statx)
REPLACE(unlink)
REPLACE(usleep)
REPLACE(write)

/* The loader or the library under test may call the following functions before dlsym can be
 * used. So these replacements make the system call directly. */
long replaced_clock_gettime(long, long) __asm__("clock_gettime");
long replaced_clock_gettime(long clock, long time)
{
    use("clock_gettime", __builtin_return_address(0));
    return kernel(SYS_clock_gettime, clock, time, 0, 0);
}

#define ALLOCATOR(NAME)                                                                                                    \
    long own_##NAME(long, long) __asm__("__libc_" #NAME);                                                                  \
    long replaced_##NAME(long, long) __asm__(#NAME);                                                                       \
    long replaced_##NAME(long first, long second)                                                                          \
    {                                                                                                                      \
        use(#NAME, __builtin_return_address(0));                                                                                                        \
        return own_##NAME(first, second);                                                                                  \
    }
ALLOCATOR(malloc)
ALLOCATOR(calloc)
ALLOCATOR(realloc)
ALLOCATOR(free)
