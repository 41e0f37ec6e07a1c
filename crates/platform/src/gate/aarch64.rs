//! The assembler of the gate in front of the driver, for AArch64 (AAPCS64, little endian). `x86_64.rs` explains it.
//!
//! A stub passes its [`Gate`] in `x16`. Before the call the code changes only registers that any call may change. The
//! frame is part of the chain of frame pointers, which the doors require.

use core::arch::{global_asm, naked_asm};

use crate::gate::{GATE_COUNT, Gate, STUB_SIZE};
use crate::thread::{Block, ThreadRecord};

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
    "hint #34",
    "adrp x16, {gates} + tllmprof_g",
    "add x16, x16, :lo12:{gates} + tllmprof_g",
    "b {pass}",
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

/// Saves the argument registers at the stack pointer.
macro_rules! save {
    () => {
        "stp x0, x1, [sp]
         stp x2, x3, [sp, #0x10]
         stp x4, x5, [sp, #0x20]
         stp x6, x7, [sp, #0x30]
         str x8, [sp, #0x40]
         stp q0, q1, [sp, #0x50]
         stp q2, q3, [sp, #0x70]
         stp q4, q5, [sp, #0x90]
         stp q6, q7, [sp, #0xb0]"
    };
}

/// Restores the registers that `save` saved.
macro_rules! restore {
    () => {
        "ldp x0, x1, [sp]
         ldp x2, x3, [sp, #0x10]
         ldp x4, x5, [sp, #0x20]
         ldp x6, x7, [sp, #0x30]
         ldr x8, [sp, #0x40]
         ldp q0, q1, [sp, #0x50]
         ldp q2, q3, [sp, #0x70]
         ldp q4, q5, [sp, #0x90]
         ldp q6, q7, [sp, #0xb0]"
    };
}

/// Copies the arguments on the caller's stack to this frame's.
macro_rules! copy_stack_arguments {
    () => {
        "ldp x9, x10, [x29, #0x20]
         ldp x11, x12, [x29, #0x30]
         stp x9, x10, [sp]
         stp x11, x12, [sp, #0x10]
         ldp x9, x10, [x29, #0x40]
         ldp x11, x12, [x29, #0x50]
         stp x9, x10, [sp, #0x20]
         stp x11, x12, [sp, #0x30]
         ldp x9, x10, [x29, #0x60]
         ldp x11, x12, [x29, #0x70]
         stp x9, x10, [sp, #0x40]
         stp x11, x12, [sp, #0x50]"
    };
}

/// Passes a call through the gate in `x16`, like the function of this name for x86-64. Twelve stack words, which may
/// contain arguments, are copied.
#[unsafe(naked)]
unsafe extern "C" fn pass() {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-0x20]!",
        ".cfi_def_cfa_offset 0x20",
        ".cfi_offset x29, -0x20",
        ".cfi_offset x30, -0x18",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "sub sp, sp, #0x60",
        "str x16, [x29, #0x18]",
        "adrp x9, :gottprel:tllmprof_tls",
        "ldr x9, [x9, :gottprel_lo12:tllmprof_tls]",
        "mrs x10, tpidr_el0",
        "add x9, x9, x10",
        "ldr x9, [x9, #{record}]",
        "cbz x9, 2f",
        "ldr x10, [x9, #{flight}]",
        "cbnz x10, 2f",
        "ldr x10, [x16, #{weight}]",
        "ldr x11, [x9, #{passes}]",
        "add x11, x11, x10",
        "str x11, [x9, #{passes}]",
        "str x9, [x29, #0x10]",
        "str x29, [x9, #{flight}]",
        // The thread that closes the gate runs a barrier on every thread afterwards, so no barrier is needed here.
        "adrp x10, {closed}",
        "ldr w10, [x10, :lo12:{closed}]",
        "cbnz w10, 2f",
        "3:",
        copy_stack_arguments!(),
        "ldr x16, [x29, #0x18]",
        "ldr x16, [x16, #{real}]",
        "blr x16",
        "ldr x9, [x29, #0x10]",
        "cmp x9, #1",
        "b.ls 4f",
        "add x9, x9, #{flight}",
        "stlr xzr, [x9]",
        "b 6f",
        "4:",
        "b.lo 6f",
        "adrp x9, {unseen}",
        "add x9, x9, :lo12:{unseen}",
        "5:",
        "ldaxr w10, [x9]",
        "sub w10, w10, #1",
        "stlxr w11, w10, [x9]",
        "cbnz w11, 5b",
        "6:",
        ".cfi_remember_state",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], #0x20",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_restore_state",
        "2:",
        "sub sp, sp, #0xd0",
        save!(),
        "mov x0, x16",
        "mov x1, x29",
        "bl {enter}",
        "str x0, [x29, #0x10]",
        restore!(),
        "add sp, sp, #0xd0",
        "b 3b",
        ".cfi_endproc",
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
