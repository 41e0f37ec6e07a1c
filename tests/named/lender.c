/* A function that has no size in the symbol table. Therefore its entry cannot be patched, and only calls through
 * GOT slots reach its hook. */
long lent_step(long n);
#ifdef __aarch64__
#define CODE "add x0, x0, x0, lsl 2\n add x0, x0, 3\n ret\n"
#else
#define CODE "lea 3(%rdi,%rdi,4), %rax\n ret\n"
#endif
__asm__(".text\n.globl lent_step\n.type lent_step,@function\n.p2align 4\nlent_step: " CODE);
