/* The driver's functions with other beginnings than the compiler's: `shape N, NAME` defines NAME, which goes on to made_NAME, the
 * function itself. All but two can be moved elsewhere: a call that begins a function, and a loop back to its beginning. */
    .intel_syntax noprefix
    .bss
    .balign 8
traced: .zero 8
    .text

.macro begin name, align
    .p2align 5
    .skip \align, 0xcc
    .globl \name
    .type \name, @function
\name:
.endm

/* A stub that jumps through a table. */
.macro shape0 name
    .pushsection .data.rel.ro.shapes, "aw"
    .balign 8
9:  .quad made_\name
    .popsection
    begin \name, 0
    endbr64
    jmp qword ptr [rip + 9b]
    .size \name, . - \name
.endm

/* One that asks first whether a tool traces calls: a long first instruction, in one word or not. */
.macro shape1 name
    begin \name, 0
    cmp dword ptr [rip + traced], 0
    jne 8f
    jmp made_\name
8:  ud2
    .size \name, . - \name
.endm

.macro shape2 name
    begin \name, 5
    endbr64
    mov eax, dword ptr [rip + traced]
    test eax, eax
    jnz 8f
    jmp made_\name
8:  ud2
    .size \name, . - \name
.endm

/* One byte, then three; a short conditional jump among what is moved. */
.macro shape3 name
    begin \name, 0
    push rbp
    mov rbp, rsp
    pop rbp
    jmp made_\name
    .size \name, . - \name
.endm

.macro shape4 name
    begin \name, 11
    cmp rsp, 0
    je 8f
    push r15
    push r14
    sub rsp, 0x88
    add rsp, 0x88
    pop r14
    pop r15
    jmp made_\name
8:  ud2
    .size \name, . - \name
.endm

/* Nothing but a jump. */
.macro shape5 name
    begin \name, 3
    jmp made_\name
    .size \name, . - \name
.endm

/* An address beside the code, of one byte and of eight. */
.macro shape6 name
    begin \name, 0
    push rbx
    lea rbx, [rip + traced]
    cmp byte ptr [rbx], 0
    pop rbx
    jmp made_\name
    .size \name, . - \name
.endm

/* A call: it cannot be moved. */
.macro shape7 name
    begin \name, 0
    call 8f
8:  lea rsp, [rsp + 8]
    jmp made_\name
    .size \name, . - \name
.endm

/* A loop back to the second instruction. */
.macro shape8 name
    begin \name, 0
    xor eax, eax
8:  inc eax
    cmp eax, 3
    jb 8b
    jmp made_\name
    .size \name, . - \name
.endm

.macro shape number, name
    shape\number \name
.endm

#include "shapes.list"

    .section .note.GNU-stack,"",@progbits
