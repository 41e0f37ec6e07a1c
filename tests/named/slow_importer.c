/* A library whose relocation takes 0.3 s: the loader calls the resolver of an IFUNC before it relocates the slot of
 * `lent_step`. The resolver makes system calls itself, because its library has no relocated slots yet. */
#include <sys/syscall.h>
#include <time.h>

long lent_step(long n);

static long twice(long n)
{
    return 2 * n;
}

static long (*resolve(void))(long)
{
    struct timespec rest = {0, 300000000};
#ifdef __aarch64__
    register long number __asm__("x8") = SYS_nanosleep;
    register void *first __asm__("x0") = &rest;
    register void *second __asm__("x1") = 0;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
#else
    long number = SYS_nanosleep;
    __asm__ volatile("syscall" : "+a"(number) : "D"(&rest), "S"(0) : "rcx", "r11", "memory");
#endif
    return twice;
}

__attribute__((visibility("default"), ifunc("resolve"))) long chosen(long n);

__attribute__((visibility("default"))) long importer_run(long n)
{
    long (*volatile of_slot)(long) = chosen;
    return lent_step(of_slot(n)) + lent_step(n + 1);
}
