/* A function that others reach by their GOT slots alone, as it has no size. */
long lent_step(long n);
__asm__(".text\n.globl lent_step\n.type lent_step,@function\n.p2align 4\n"
        "lent_step: lea 3(%rdi,%rdi,4), %rax\n ret\n");
