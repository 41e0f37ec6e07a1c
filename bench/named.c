// Functions that are named in a rule of the profiler's configuration. The profiler patches the entry of `named_entry`.
// The symbol `named_slot` has size 0, so its entry is not patched, and calls of it are hooked through the GOT.
int named_entry(void *a, void *b) { return a != b; }

// Runs one step of a simulated program. `body` makes the calls of the step. The `asm` keeps the
// call of `body` from becoming a tail call.
void named_step(void (*body)(void)) {
    body();
    __asm__ volatile("");
}

int named_slot(void *a, void *b);
__asm__(".text\n.globl named_slot\n.type named_slot,@function\n.p2align 4\n"
        "named_slot:\n\txorl %eax, %eax\n\tcmpq %rsi, %rdi\n\tsetne %al\n\tret\n");
