/* Functions whose entries cannot be patched, each for another reason, which its comment gives. The program
 * prints how often they are called. */
#include "program.h"

#include "loop.h"

/* Cannot be patched: the function is shorter than a jump. */
long odd_short(long n);
/* Cannot be patched: a loop in it jumps back to the first instruction. */
long odd_loop(long n);
/* Cannot be patched: its first five bytes contain a call. */
long odd_call(long n);
/* Cannot be patched: it begins with a branch (jrcxz) that only exists with a short distance. */
long odd_jrcxz(long n);
/* Cannot be patched: the symbol table has no size for the function. */
long odd_unsized(long n);
/* Cannot be patched: a jump table in it has an entry for its second instruction. */
long odd_table(long n);
/* These functions can be patched although they begin in unusual ways: with a branch among the
 * first bytes, with an address relative to the instruction pointer, and with an endbr64, in this
 * order. */
long fine_branch(long n);
long fine_relative(long n);
long fine_cet(long n);

__asm__(".text\n"
        ".macro begin name\n.globl \\name\n.type \\name,@function\n.p2align 4\n\\name:\n.cfi_startproc\n.endm\n"
        "begin odd_short\n mov %rdi, %rax\n ret\n.cfi_endproc\n.size odd_short, . - odd_short\n"
        "begin odd_loop\n add $3, %rdi\n cmp $100, %rdi\n jl odd_loop\n mov %rdi, %rax\n ret\n.cfi_endproc\n.size odd_loop, . - odd_loop\n"
        "begin odd_call\n call odd_short\n add %rdi, %rax\n ret\n.cfi_endproc\n.size odd_call, . - odd_call\n"
        "begin odd_jrcxz\n mov %edi, %ecx\n jrcxz 1f\n lea 5(%rdi), %rax\n ret\n1: mov $9, %eax\n ret\n.cfi_endproc\n.size odd_jrcxz, . - odd_jrcxz\n"
        "begin odd_unsized\n lea 7(%rdi), %rax\n nop\n nop\n ret\n.cfi_endproc\n"
        "begin odd_table\n xor %eax, %eax\n2: inc %rax\n lea 4f(%rip), %rdx\n mov %rdi, %rcx\n and $1, %ecx\n"
        " sub $1, %rdi\n jle 3f\n movslq (%rdx,%rcx,4), %rcx\n add %rdx, %rcx\n jmp *%rcx\n3: ret\n.cfi_endproc\n"
        ".size odd_table, . - odd_table\n"
        ".section .rodata\n.p2align 2\n4: .long 3b - 4b\n .long 2b - 4b\n.text\n"
        "begin fine_branch\n test %rdi, %rdi\n js 5f\n lea 11(%rdi), %rax\n ret\n5: mov $1, %eax\n ret\n.cfi_endproc\n"
        ".size fine_branch, . - fine_branch\n"
        "begin fine_relative\n mov 6f(%rip), %rax\n add %rdi, %rax\n ret\n.cfi_endproc\n.size fine_relative, . - fine_relative\n"
        ".section .rodata\n.p2align 3\n6: .quad 12345\n.text\n"
        "begin fine_cet\n endbr64\n push %rbx\n mov %rdi, %rbx\n lea (%rbx,%rbx,4), %rax\n pop %rbx\n ret\n.cfi_endproc\n"
        ".size fine_cet, . - fine_cet\n");

int main(void)
{
    program_begin();
    struct loop loop;
    struct loop_options options = loop_defaults();
    loop_open(&loop, &options);
    long sum = 0;
    for (long n = -2; n < 8; n++) {
        sum = sum * 3 + odd_short(n) + odd_loop(n) + odd_call(n) + odd_jrcxz(n) + odd_unsized(n) + odd_table(n);
        sum = sum * 3 + fine_branch(n) + fine_relative(n) + fine_cet(n);
    }
    loop_step(&loop, 0);
    printf("sum %ld checksum %016llx\n", sum, (unsigned long long)loop_close(&loop));
    return 0;
}
