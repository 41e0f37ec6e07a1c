//! The assembly code of the gates in front of the driver's functions, for x86-64 (System V ABI).
//!
//! A stub passes its [`Gate`] in `r11`. [`pass`] notes in the thread's record that the thread is in the
//! driver, calls the driver's function and clears the note again. The frame of `pass` has call frame information and no
//! personality routine, so that a C++ exception can pass through it.

use core::arch::{global_asm, naked_asm};

use crate::gate::{GATE_COUNT, Gate, STUB_SIZE};
use crate::thread::{Block, ThreadRecord};

/// The number of words that are copied from the caller's stack, because they may contain arguments of the driver
/// function. `cuTensorMapEncodeIm2colWide` takes ten arguments on the stack, more than any other driver function.
const STACK_WORDS: usize = 12;

global_asm!(
    ".section .text.tllmprof_gates,\"ax\",@progbits",
    ".p2align 6",
    ".hidden tllmprof_gates",
    ".globl tllmprof_gates",
    ".type tllmprof_gates,@function",
    "tllmprof_gates:",
    ".cfi_startproc",
    ".set tllmprof_g, 0",
    ".rept {count}",
    ".balign {stub}",
    "lea r11, [rip + {gates} + tllmprof_g]",
    "jmp {pass}",
    ".set tllmprof_g, tllmprof_g + {size}",
    ".endr",
    ".cfi_endproc",
    ".size tllmprof_gates, . - tllmprof_gates",
    ".text",
    count = const GATE_COUNT,
    stub = const STUB_SIZE,
    size = const size_of::<Gate>(),
    gates = sym crate::gate::GATES,
    pass = sym pass,
);

/// Calls the driver function of the gate in `r11`. During the call, the thread's record contains the note that the
/// thread is in the driver. [`crate::gate::enter`] handles unusual cases: a thread without a record, a call nested in
/// another, a closed gate. It returns a word that says where it has counted the call: in a record (its address), in the
/// count for threads without a record (1), or nowhere (0).
#[unsafe(naked)]
unsafe extern "C" fn pass() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 0x10 + 8 * {words}",
        "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
        "mov r10, qword ptr fs:[r10 + {record}]",
        "test r10, r10",
        "jz 2f",
        "cmp qword ptr [r10 + {flight}], 0",
        "jne 2f",
        "mov qword ptr [rbp - 8], r10",
        "mov rax, qword ptr [r11 + {weight}]",
        "add qword ptr [r10 + {passes}], rax",
        "mov qword ptr [r10 + {flight}], rbp",
        // A thread that closes the gates stores `CLOSED`, and then runs a barrier on every thread. So
        // either the closing thread sees that this thread is in the driver, or this thread sees that
        // the gates are closed.
        "cmp byte ptr [rip + {closed}], 0",
        "jne 2f",
        "3:",
        ".set tllmprof_word, 0",
        ".rept {words}",
        "mov r10, qword ptr [rbp + 16 + tllmprof_word]",
        "mov qword ptr [rsp + tllmprof_word], r10",
        ".set tllmprof_word, tllmprof_word + 8",
        ".endr",
        "xor eax, eax",
        "call qword ptr [r11 + {real}]",
        "mov r10, qword ptr [rbp - 8]",
        "cmp r10, 1",
        "jbe 4f",
        "mov qword ptr [r10 + {flight}], 0",
        ".cfi_remember_state",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_restore_state",
        "4:",
        "jb 5f",
        "lock dec dword ptr [rip + {unseen}]",
        "5:",
        ".cfi_remember_state",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_restore_state",
        "2:",
        "sub rsp, 0xc0",
        "mov qword ptr [rsp], rdi",
        "mov qword ptr [rsp + 0x08], rsi",
        "mov qword ptr [rsp + 0x10], rdx",
        "mov qword ptr [rsp + 0x18], rcx",
        "mov qword ptr [rsp + 0x20], r8",
        "mov qword ptr [rsp + 0x28], r9",
        "mov qword ptr [rsp + 0x30], r11",
        "movups xmmword ptr [rsp + 0x40], xmm0",
        "movups xmmword ptr [rsp + 0x50], xmm1",
        "movups xmmword ptr [rsp + 0x60], xmm2",
        "movups xmmword ptr [rsp + 0x70], xmm3",
        "movups xmmword ptr [rsp + 0x80], xmm4",
        "movups xmmword ptr [rsp + 0x90], xmm5",
        "movups xmmword ptr [rsp + 0xa0], xmm6",
        "movups xmmword ptr [rsp + 0xb0], xmm7",
        "mov rdi, r11",
        "mov rsi, rbp",
        "call {enter}",
        "mov qword ptr [rbp - 8], rax",
        "mov rdi, qword ptr [rsp]",
        "mov rsi, qword ptr [rsp + 0x08]",
        "mov rdx, qword ptr [rsp + 0x10]",
        "mov rcx, qword ptr [rsp + 0x18]",
        "mov r8, qword ptr [rsp + 0x20]",
        "mov r9, qword ptr [rsp + 0x28]",
        "mov r11, qword ptr [rsp + 0x30]",
        "movups xmm0, xmmword ptr [rsp + 0x40]",
        "movups xmm1, xmmword ptr [rsp + 0x50]",
        "movups xmm2, xmmword ptr [rsp + 0x60]",
        "movups xmm3, xmmword ptr [rsp + 0x70]",
        "movups xmm4, xmmword ptr [rsp + 0x80]",
        "movups xmm5, xmmword ptr [rsp + 0x90]",
        "movups xmm6, xmmword ptr [rsp + 0xa0]",
        "movups xmm7, xmmword ptr [rsp + 0xb0]",
        "add rsp, 0xc0",
        "jmp 3b",
        ".cfi_endproc",
        words = const STACK_WORDS,
        record = const Block::RECORD,
        flight = const ThreadRecord::FLIGHT,
        real = const Gate::REAL,
        weight = const Gate::WEIGHT,
        passes = const ThreadRecord::PASSES,
        closed = sym crate::gate::CLOSED,
        unseen = sym crate::gate::UNSEEN,
        enter = sym crate::gate::enter,
    )
}
