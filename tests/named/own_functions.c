/* A program that defines functions under names of the C library, such as malloc. Libraries then call the
 * program's functions. */
#include "program.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "standin.h"

enum { HEAP = 256 << 20, THREADS = 4, CALLS = 500 };

static char heap[HEAP] __attribute__((aligned(64)));
static size_t used;

/* An allocator that stores the size of a block in front of the block. */
__attribute__((noinline)) void *malloc(size_t size)
{
    size_t room = ((size + 63) & ~(size_t)63) + 64;
    size_t at = __atomic_fetch_add(&used, room, __ATOMIC_RELAXED);
    if (at + room > HEAP)
        abort();
    *(size_t *)(void *)(heap + at) = size;
    return heap + at + 64;
}

__attribute__((noinline)) void free(void *block)
{
    __asm__ volatile("" : : "r"(block) : "memory");
}

__attribute__((noinline)) void *calloc(size_t count, size_t size)
{
    return malloc(count * size);
}

__attribute__((noinline)) void *realloc(void *block, size_t size)
{
    char *moved = malloc(size);
    size_t old = block == NULL ? 0 : ((size_t *)block)[-8];
    for (size_t i = 0; i < old && i < size; i++)
        moved[i] = ((char *)block)[i];
    return moved;
}

__attribute__((noinline)) void *memset(void *place, int byte, size_t size)
{
    volatile char *bytes = place;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)byte;
    return place;
}

__attribute__((noinline)) void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    volatile char *bytes = to;
    for (size_t i = 0; i < size; i++)
        bytes[i] = ((const char *)from)[i];
    return to;
}

__attribute__((noinline)) int mprotect(void *place, size_t size, int rights)
{
    return (int)syscall(SYS_mprotect, place, size, rights);
}

static void *run(void *unused)
{
    for (int n = 1; n <= CALLS; n++) {
        char *block = malloc((size_t)n), copy[CALLS];
        memset(block, n, (size_t)n);
        memcpy(copy, block, (size_t)n);
        cudaDeviceSynchronize();
        if (copy[n - 1] != (char)n)
            abort();
        free(block);
    }
    return unused;
}

int main(void)
{
    program_begin();
    cudaFree(NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    void *library = dlopen("libm.so.6", RTLD_NOW);
    printf("%d\n", library != NULL && dlsym(library, "cos") != NULL);
    return 0;
}
