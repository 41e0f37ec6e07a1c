//! Assembly code that runs when the program calls a native function that a step rule names, for AArch64 (AAPCS64,
//! little endian).
//!
//! The program calls the function's stub through a GOT slot, or by an address that `dlsym` returned. The stub adds one
//! to the thread's counter for such functions (its cell) and jumps to the real function. It leaves no frame on the
//! stack. The library does not know the function's signature, so the stub changes only `x16`, `x17` and the flags,
//! which a linker's veneer may change at any call in the base calling convention. Vector and SVE functions have other
//! conventions; the symbol tables mark them, and they are not hooked.
//!
//! A stub jumps to [`slow`] when the count is past the cell's limit, or when the thread has no cells yet. [`slow`]
//! saves all registers that a call may change, not only those that carry arguments, because a caller that knows the
//! function may keep values in other registers (`preserve_most`).
//!
//! If the library must see the call return, the function is entered with the address of a return stub in `x30`. The
//! function signs and saves this address like any return address. The original return address is in a word that belongs
//! to the return stub ([`Return`]). A C++ exception, a `longjmp` or a backtrace passes the return stub's frame using
//! only its call frame information: the frame is empty, and its return address is the value of that word minus one. To
//! find the word, an unwinder reads `x30` as the function saved it and removes the signature, which lies in the upper
//! 16 bits. It then reads the distance from the return stub to the word. This distance is stored after the return
//! stub's code, so that nothing in `.eh_frame` needs a relocation. `named_x86_64.rs` explains why the frame is a signal
//! frame and why one is subtracted from the return address.
//!
//! A stub's real address (the address of the real function) is stored before callers get the stub's address. But a
//! thread that uses the stub has run no barrier, so it may still load null in place of the real address. In that case
//! the stub executes `dmb ishld`, which waits for earlier loads, and loads the address again.

use core::arch::{global_asm, naked_asm};
use tllmprof_platform::thread::Block;

use crate::named::pool::{AWAITED, COUNT, LIMIT, REALS, RETURNS, Return, STUBS};

/// Size in bytes of the frame of [`slow`] and [`returned`]: the frame record, `x16` (in which the stub passes an
/// address or an index) and `x18`, `x0` to `x15`, the floating-point status, and `q0` to `q31`.
const FRAME: usize = 0x2b0;

/// Pushes a frame and saves every register that a call may change, and `x16`.
macro_rules! save_all {
    () => {
        "sub sp, sp, #{frame}
         .cfi_def_cfa_offset {frame}
         stp x29, x30, [sp]
         .cfi_offset x29, -{frame}
         .cfi_offset x30, -{frame} + 8
         mov x29, sp
         .cfi_def_cfa_register x29
         stp x16, x18, [x29, #0x10]
         stp x0, x1, [x29, #0x20]
         stp x2, x3, [x29, #0x30]
         stp x4, x5, [x29, #0x40]
         stp x6, x7, [x29, #0x50]
         stp x8, x9, [x29, #0x60]
         stp x10, x11, [x29, #0x70]
         stp x12, x13, [x29, #0x80]
         stp x14, x15, [x29, #0x90]
         mrs x9, fpsr
         str x9, [x29, #0xa0]
         stp q0, q1, [x29, #0xb0]
         stp q2, q3, [x29, #0xd0]
         stp q4, q5, [x29, #0xf0]
         stp q6, q7, [x29, #0x110]
         stp q8, q9, [x29, #0x130]
         stp q10, q11, [x29, #0x150]
         stp q12, q13, [x29, #0x170]
         stp q14, q15, [x29, #0x190]
         stp q16, q17, [x29, #0x1b0]
         stp q18, q19, [x29, #0x1d0]
         stp q20, q21, [x29, #0x1f0]
         stp q22, q23, [x29, #0x210]
         stp q24, q25, [x29, #0x230]
         stp q26, q27, [x29, #0x250]
         stp q28, q29, [x29, #0x270]
         stp q30, q31, [x29, #0x290]"
    };
}

/// Restores the registers that `save_all` saved, and pops its frame.
macro_rules! restore_all {
    () => {
        "ldr x9, [x29, #0xa0]
         msr fpsr, x9
         ldp x16, x18, [x29, #0x10]
         ldp x0, x1, [x29, #0x20]
         ldp x2, x3, [x29, #0x30]
         ldp x4, x5, [x29, #0x40]
         ldp x6, x7, [x29, #0x50]
         ldp x8, x9, [x29, #0x60]
         ldp x10, x11, [x29, #0x70]
         ldp x12, x13, [x29, #0x80]
         ldp x14, x15, [x29, #0x90]
         ldp q0, q1, [x29, #0xb0]
         ldp q2, q3, [x29, #0xd0]
         ldp q4, q5, [x29, #0xf0]
         ldp q6, q7, [x29, #0x110]
         ldp q8, q9, [x29, #0x130]
         ldp q10, q11, [x29, #0x150]
         ldp q12, q13, [x29, #0x170]
         ldp q14, q15, [x29, #0x190]
         ldp q16, q17, [x29, #0x1b0]
         ldp q18, q19, [x29, #0x1d0]
         ldp q20, q21, [x29, #0x1f0]
         ldp q22, q23, [x29, #0x210]
         ldp q24, q25, [x29, #0x230]
         ldp q26, q27, [x29, #0x250]
         ldp q28, q29, [x29, #0x270]
         ldp q30, q31, [x29, #0x290]
         .cfi_def_cfa_register sp
         ldp x29, x30, [sp]
         .cfi_restore x29
         .cfi_restore x30
         add sp, sp, #{frame}
         .cfi_def_cfa_offset 0"
    };
}

global_asm!(
    ".section .text.tllmprof_named_stubs,\"ax\",@progbits",
    ".p2align 7",
    ".hidden tllmprof_named_stubs",
    ".globl tllmprof_named_stubs",
    ".type tllmprof_named_stubs,@function",
    "tllmprof_named_stubs:",
    ".cfi_startproc",
    ".set tllmprof_i, 0",
    ".rept {count}",
    ".p2align 7",
    "hint #34",
    "adrp x16, :gottprel:tllmprof_tls",
    "ldr x16, [x16, :gottprel_lo12:tllmprof_tls]",
    "mrs x17, tpidr_el0",
    "add x16, x16, x17",
    "ldr x16, [x16, #{cells}]",
    "cbz x16, 4f",
    "add x16, x16, #{tally}",
    "ldr x17, [x16]",
    "add x17, x17, #1",
    "str x17, [x16]",
    // The limit is loaded after the count is stored: the module documentation of `aarch64.rs` explains the order.
    "ldr x16, [x16, #{limit} - {tally}]",
    "cmp x17, x16",
    "b.hi 4f",
    "2: adrp x16, {reals} + tllmprof_i",
    "ldr x16, [x16, :lo12:{reals} + tllmprof_i]",
    "cbz x16, 3f",
    "br x16",
    "3: dmb ishld",
    "b 2b",
    "4: adrp x16, {reals} + tllmprof_i",
    "add x16, x16, :lo12:{reals} + tllmprof_i",
    "b {slow}",
    ".set tllmprof_i, tllmprof_i + 8",
    ".endr",
    ".p2align 7",
    ".hidden tllmprof_named_stubs_end",
    ".globl tllmprof_named_stubs_end",
    "tllmprof_named_stubs_end:",
    ".cfi_endproc",
    ".size tllmprof_named_stubs, . - tllmprof_named_stubs",
    // A call whose end the library must see returns to one of these stubs (pieces of code). The stub loads the original
    // return address and jumps to `returned`. The `nop` comes first because unwinders look up the byte before a return
    // address.
    ".p2align 5",
    ".hidden tllmprof_return_stubs",
    ".globl tllmprof_return_stubs",
    ".type tllmprof_return_stubs,@function",
    "tllmprof_return_stubs:",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".set tllmprof_i, 0",
    ".rept {returns}",
    ".p2align 5",
    // The unwind rule for the return address, which the module documentation explains. DW_CFA_val_expression,
    // register 30, 20 bytes: breg30 0, const8u 2^48 - 1, and, plus_uconst 20, dup, deref, plus, deref, lit1, minus.
    ".cfi_escape 0x16, 0x1e, 0x14, 0x8e, 0, 0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x1a",
    ".cfi_escape 0x23, 0x14, 0x12, 0x06, 0x22, 0x06, 0x31, 0x1c",
    "nop",
    // Loads the original return address. The unwind rule above expects the distance (the `.xword` below) 20 bytes
    // after the first `nop`, so the length of this code must not change.
    "mov x16, #tllmprof_i",
    "adrp x17, {awaited} + tllmprof_i * {return_size} + {address}",
    "ldr x30, [x17, :lo12:{awaited} + tllmprof_i * {return_size} + {address}]",
    ".cfi_same_value x30",
    "b {returned}",
    "nop",
    ".xword {awaited} + tllmprof_i * {return_size} + {address} - .",
    ".set tllmprof_i, tllmprof_i + 1",
    ".endr",
    ".cfi_endproc",
    ".size tllmprof_return_stubs, . - tllmprof_return_stubs",
    ".text",
    count = const STUBS,
    tally = const COUNT,
    limit = const LIMIT,
    reals = sym REALS,
    slow = sym slow,
    returns = const RETURNS,
    awaited = sym AWAITED,
    return_size = const size_of::<Return>(),
    address = const Return::ADDRESS,
    returned = sym returned,
    cells = const Block::CELLS,
);

/// Calls a Rust function before the intercepted function runs. The stubs jump here when the count is past the
/// thread's limit, or when the thread has no cells (call counters) yet.
///
/// `x16` holds the address of the stub's element of `REALS`, which contains the real function's address.
#[unsafe(naked)]
unsafe extern "C" fn slow() {
    naked_asm!(
        ".cfi_startproc",
        save_all!(),
        "dmb ishld",
        "add x0, x29, #8",
        "ldr x1, [x16]",
        "bl {before}",
        restore_all!(),
        "ldr x16, [x16]",
        "br x16",
        ".cfi_endproc",
        frame = const FRAME,
        before = sym crate::named::before,
    )
}

/// A return stub jumps here when a call returns, if the library must see the end of that call. Calls a Rust function,
/// and then returns to the caller. `x16` holds the stub's index in [`AWAITED`], and `x30` holds the address at which
/// the caller continues. The handler preserves every register that carries a result or that a call must preserve.
#[unsafe(naked)]
unsafe extern "C" fn returned() {
    naked_asm!(
        ".cfi_startproc",
        save_all!(),
        "mov x0, x16",
        "bl {after}",
        restore_all!(),
        "ret",
        ".cfi_endproc",
        frame = const FRAME,
        after = sym crate::named::after,
    )
}
