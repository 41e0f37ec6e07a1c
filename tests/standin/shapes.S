/* Driver functions that begin in other ways than compiled ones. `shape N, NAME` defines a function NAME, which jumps
 * to made_NAME, the real function. Most of these beginnings can be moved elsewhere. Two cannot: a call as the first
 * instruction, and a loop back into the beginning. */
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

/* Shape 0: a stub that jumps to an address in a table. */
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

/* Shapes 1 and 2: the function first checks if a tool traces calls. In shape 1, the first
 * instruction lies within an aligned word of 8 bytes; in shape 2, it does not. */
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

/* Instructions of one byte and then three (shape 3), and a short conditional jump among the instructions that are
 * moved (shape 4). */
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

/* Shape 5: the function is only a jump. */
.macro shape5 name
    begin \name, 3
    jmp made_\name
    .size \name, . - \name
.endm

/* Shape 6: an instruction of one byte, then one with an address relative to the instruction pointer. */
.macro shape6 name
    begin \name, 0
    push rbx
    lea rbx, [rip + traced]
    cmp byte ptr [rbx], 0
    pop rbx
    jmp made_\name
    .size \name, . - \name
.endm

/* Shape 7: the function begins with a call, which cannot be moved. */
.macro shape7 name
    begin \name, 0
    call 8f
8:  lea rsp, [rsp + 8]
    jmp made_\name
    .size \name, . - \name
.endm

/* Shape 8: a loop jumps back to the second instruction, so that instruction cannot be moved. */
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
