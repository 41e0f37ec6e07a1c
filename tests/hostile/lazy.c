/* Functions that look up the real functions at their first call, like those of memory checkers and tracing tools.
 * NAMES is a list of X(name). Each name becomes a function that finds the next function of the name with dlsym and
 * jumps there with all arguments. A version script selects the functions that a library exports. With EARLY, the
 * library prints at the end which functions were called before its constructor had run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#ifdef EARLY
#include <stdio.h>
static const char *early[1000];
static int count, started;
#define FOUND(name)                                                                          \
    if (!started)                                                                            \
        early[count++] = name;
__attribute__((constructor)) static void start(void)
{
    started = 1;
}
__attribute__((destructor)) static void end(void)
{
    for (int i = 0; i < count; i++)
        dprintf(2, "early: %s\n", early[i]);
}
#else
#define FOUND(name)
#endif

#ifdef __x86_64__
#define FORWARD(name)                                                                        \
    "cmpq $0, next_" name "(%rip)\n"                                                         \
    "jne 1f\n"                                                                               \
    "push %rax\n push %rdi\n push %rsi\n push %rdx\n push %rcx\n push %r8\n push %r9\n"      \
    "call find_" name "\n"                                                                   \
    "pop %r9\n pop %r8\n pop %rcx\n pop %rdx\n pop %rsi\n pop %rdi\n pop %rax\n"             \
    "1: jmp *next_" name "(%rip)\n"
#else
#define FORWARD(name)                                                                        \
    "adrp x16, next_" name "\n"                                                              \
    "ldr x17, [x16, #:lo12:next_" name "]\n"                                                 \
    "cbnz x17, 1f\n"                                                                         \
    "stp x29, x30, [sp, #-96]!\n"                                                            \
    "stp x0, x1, [sp, #16]\n stp x2, x3, [sp, #32]\n stp x4, x5, [sp, #48]\n"                \
    "stp x6, x7, [sp, #64]\n str x8, [sp, #80]\n"                                            \
    "bl find_" name "\n"                                                                     \
    "ldp x0, x1, [sp, #16]\n ldp x2, x3, [sp, #32]\n ldp x4, x5, [sp, #48]\n"                \
    "ldp x6, x7, [sp, #64]\n ldr x8, [sp, #80]\n"                                            \
    "ldp x29, x30, [sp], #96\n"                                                              \
    "adrp x16, next_" name "\n"                                                              \
    "ldr x17, [x16, #:lo12:next_" name "]\n"                                                 \
    "1: br x17\n"
#endif

#define X(name)                                                                              \
    __attribute__((visibility("hidden"))) void *next_##name;                                 \
    __attribute__((visibility("hidden"))) void find_##name(void)                             \
    {                                                                                        \
        FOUND(#name)                                                                         \
        next_##name = dlsym(RTLD_NEXT, #name);                                               \
    }                                                                                        \
    __asm__(".text\n .globl " #name "\n .type " #name ", %function\n" #name ":\n"            \
            FORWARD(#name) ".size " #name ", . - " #name "\n");
NAMES
