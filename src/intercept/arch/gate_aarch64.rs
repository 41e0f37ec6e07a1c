//! The assembler of the gate, for AArch64 (AAPCS64, little endian): as for x86-64, see there.
//!
//! A stub names its [`Gate`] in `x16`. Before the call only registers are used that any call may
//! lose; the frame is in the chain of frame pointers, as [`super::arch`] wants it.

use core::arch::{global_asm, naked_asm};
use core::ffi::c_void;

use super::gate::{GATE_COUNT, Gate};
use crate::step::threads::Slot;

const STUB_SIZE: usize = 16;
const GATE_SIZE: usize = size_of::<Gate>();

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
    ".p2align 4",
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
    size = const GATE_SIZE,
    gates = sym super::gate::GATES,
    pass = sym pass,
);

// SAFETY: the symbol is defined above, with this size.
unsafe extern "C" {
    static tllmprof_gates: [u8; STUB_SIZE * GATE_COUNT];
}

/// The address that callers get for gate `index`.
pub fn stub(index: usize) -> *mut c_void {
    let pool = (&raw const tllmprof_gates).cast::<u8>();
    // SAFETY: the symbol is the start of GATE_COUNT stubs of STUB_SIZE bytes; index is below it.
    unsafe { pool.add(index * STUB_SIZE).cast_mut().cast() }
}

/// Passes through the gate in `x16`, as on x86-64. Twelve words of arguments on the stack are copied.
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
        "ldr x9, [x9, #24]",
        "cbz x9, 2f",
        "ldr x10, [x9, #{flight}]",
        "cbnz x10, 2f",
        "ldr x10, [x16, #8]",
        "ldr x11, [x9, #{passes}]",
        "add x11, x11, x10",
        "str x11, [x9, #{passes}]",
        "str x9, [x29, #0x10]",
        "str x29, [x9, #{flight}]",
        // Whoever closes the gate has a barrier run on every thread behind it.
        "adrp x10, {closed}",
        "ldr w10, [x10, :lo12:{closed}]",
        "cbnz w10, 2f",
        "3:",
        "ldp x9, x10, [x29, #0x20]",
        "ldp x11, x12, [x29, #0x30]",
        "stp x9, x10, [sp]",
        "stp x11, x12, [sp, #0x10]",
        "ldp x9, x10, [x29, #0x40]",
        "ldp x11, x12, [x29, #0x50]",
        "stp x9, x10, [sp, #0x20]",
        "stp x11, x12, [sp, #0x30]",
        "ldp x9, x10, [x29, #0x60]",
        "ldp x11, x12, [x29, #0x70]",
        "stp x9, x10, [sp, #0x40]",
        "stp x11, x12, [sp, #0x50]",
        "ldr x16, [x29, #0x18]",
        "ldr x16, [x16]",
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
        "stp x0, x1, [sp]",
        "stp x2, x3, [sp, #0x10]",
        "stp x4, x5, [sp, #0x20]",
        "stp x6, x7, [sp, #0x30]",
        "str x8, [sp, #0x40]",
        "stp q0, q1, [sp, #0x50]",
        "stp q2, q3, [sp, #0x70]",
        "stp q4, q5, [sp, #0x90]",
        "stp q6, q7, [sp, #0xb0]",
        "mov x0, x16",
        "mov x1, x29",
        "bl {enter}",
        "str x0, [x29, #0x10]",
        "ldp x0, x1, [sp]",
        "ldp x2, x3, [sp, #0x10]",
        "ldp x4, x5, [sp, #0x20]",
        "ldp x6, x7, [sp, #0x30]",
        "ldr x8, [sp, #0x40]",
        "ldp q0, q1, [sp, #0x50]",
        "ldp q2, q3, [sp, #0x70]",
        "ldp q4, q5, [sp, #0x90]",
        "ldp q6, q7, [sp, #0xb0]",
        "add sp, sp, #0xd0",
        "b 3b",
        ".cfi_endproc",
        flight = const Slot::FLIGHT,
        passes = const Slot::PASSES,
        closed = sym super::gate::CLOSED,
        unseen = sym super::gate::UNSEEN,
        enter = sym super::gate::enter,
    )
}
