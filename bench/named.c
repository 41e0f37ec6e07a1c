// Functions that a rule names: one whose entry the shim patches, and one that it reaches by GOT slots, as a size of 0
// keeps its entry as it is.
int named_entry(void *a, void *b) { return a != b; }

// A step of a program: its calls are made in `body`.
void named_step(void (*body)(void)) {
    body();
    __asm__ volatile("");
}

int named_slot(void *a, void *b);
__asm__(".text\n.globl named_slot\n.type named_slot,@function\n.p2align 4\n"
        "named_slot:\n\txorl %eax, %eax\n\tcmpq %rsi, %rdi\n\tsetne %al\n\tret\n");
