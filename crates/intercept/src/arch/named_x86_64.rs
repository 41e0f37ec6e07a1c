//! Assembly code that runs when the program calls a native function that a step rule names, for x86-64 (System V ABI).
//!
//! The program enters a stub through a GOT slot, or runs the function's patched entry. The stub and the patched entry
//! both add one to the thread's counter for such functions (its cell), and leave no frame on the stack. The library
//! does not know the function's signature, so any register may carry an argument. If the compiler saw both function and
//! caller, the caller may even keep values in registers that a function is free to change (GCC's `-fipa-ra`). So a stub
//! changes only the flags and `r11`, which the dynamic linker changes, too. A patched function entry changes only the
//! flags.
//!
//! If the count is past the cell's limit, or if the thread has no cells yet, the stub or the trampoline (the code to
//! which the patched entry jumps) calls [`slow`]. This code saves every register that a call may change, including the
//! complete vector registers, and calls a Rust function.
//!
//! If the library must see the call return, the call's return address is replaced by the address of a return stub. The
//! original is in a word that belongs to the return stub. A C++ exception, a `longjmp` or a backtrace passes the return
//! stub's frame using only its call frame information: the frame is empty, and its return address is the value of that
//! word minus one. The word is found by the displacement in the return stub's first instruction, so that nothing in
//! `.eh_frame` needs a relocation. The frame is marked as a signal frame, because libgcc uses this mark to distinguish
//! two frames with one stack pointer. For other frames, libgcc subtracts one from the return address before it looks
//! the address up. For a signal frame it does not. So the rule itself subtracts one: the address then lies within the
//! call instruction, as it does without this library.
//!
//! A call can be a scope: the GPU work that it launches is attributed to it. Each return stub for such calls has its
//! own personality routine, which an unwinder calls when an exception leaves the frame. The routine reports the end of
//! the call, and requests no clean-up.

use core::arch::{global_asm, naked_asm};
use tllmprof_platform::thread::Block;

use crate::named::pool::{AWAITED, COUNT, LIMIT, REALS, RETURNS, Return, SCOPES, STUBS};
use crate::named::processor::{AREA, LEGACY, MASK};

/// Saves on the stack, below `rbp`, every register that a call may change.
macro_rules! save_all {
    () => {
        "push rax
         push rcx
         push rdx
         push rsi
         push rdi
         push r8
         push r9
         push r10
         push r11
         sub rsp, qword ptr [rip + {area}]
         and rsp, -64
         mov rax, qword ptr [rip + {mask}]
         test rax, rax
         jz 2f
         # xrstor faults on a header that is not 0 where xsave does not write it.
         xor ecx, ecx
         mov qword ptr [rsp + {legacy}], rcx
         mov qword ptr [rsp + {legacy} + 8], rcx
         mov qword ptr [rsp + {legacy} + 16], rcx
         mov qword ptr [rsp + {legacy} + 24], rcx
         mov qword ptr [rsp + {legacy} + 32], rcx
         mov qword ptr [rsp + {legacy} + 40], rcx
         mov qword ptr [rsp + {legacy} + 48], rcx
         mov qword ptr [rsp + {legacy} + 56], rcx
         mov rdx, rax
         shr rdx, 32
         xsave64 [rsp]
         jmp 3f
         2: fxsave64 [rsp]
         3:"
    };
}

/// Restores the registers that `save_all` saved. The stack pointer must have the value that `save_all` left.
macro_rules! restore_all {
    () => {
        "mov rax, qword ptr [rip + {mask}]
         test rax, rax
         jz 4f
         mov rdx, rax
         shr rdx, 32
         xrstor64 [rsp]
         jmp 5f
         4: fxrstor64 [rsp]
         5: lea rsp, [rbp - 72]
         pop r11
         pop r10
         pop r9
         pop r8
         pop rdi
         pop rsi
         pop rdx
         pop rcx
         pop rax
         pop rbp"
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
    "mov r11, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11 + {cells}]",
    "test r11, r11",
    "jz 2f",
    "inc qword ptr [r11 + {tally}]",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "mov rax, qword ptr [r11 + {tally}]",
    "cmp rax, qword ptr [r11 + {limit}]",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "ja 2f",
    "jmp qword ptr [rip + {reals} + tllmprof_i]",
    "2:",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "call {slow}",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "jmp qword ptr [rip + {reals} + tllmprof_i]",
    ".set tllmprof_i, tllmprof_i + 8",
    ".endr",
    ".p2align 7",
    ".hidden tllmprof_named_stubs_end",
    ".globl tllmprof_named_stubs_end",
    "tllmprof_named_stubs_end:",
    ".cfi_endproc",
    ".size tllmprof_named_stubs, . - tllmprof_named_stubs",
    // Macro: the code of return stub number `tllmprof_i`. A call whose end the library must see returns to this stub.
    // The stub lies at the offset `place` from the symbol `stubs`.
    ".macro tllmprof_return_stub stubs, place",
    ".cfi_def_cfa rsp, 0",
    // The unwind rule for the return address, which the module documentation explains. DW_CFA_val_expression,
    // register 16, 9 bytes: breg16 23, deref, breg16 23, plus, deref, lit1, minus. The number 23 is the distance in
    // bytes from the address to which calls return up to the `.quad` below. That word holds the distance to the
    // original return address. valgrind supports these operations. For other operations it prints a line in each
    // process.
    ".cfi_escape 0x16, 0x10, 0x09, 0x80, 0x17, 0x06, 0x80, 0x17, 0x22, 0x06, 0x31, 0x1c",
    "nop",
    "push qword ptr [rip + {awaited} + tllmprof_i * {return_size} + {address}]",
    ".cfi_def_cfa_offset 8",
    ".cfi_offset rip, -8",
    "push tllmprof_i",
    ".cfi_adjust_cfa_offset 8",
    "jmp {returned}",
    ".org \\stubs + \\place + 24",
    ".quad {awaited} + tllmprof_i * {return_size} + {address} - .",
    ".endm",
    // A call whose end the library must see returns to one of these stubs (pieces of code). The stub pushes the
    // original return address and jumps to `returned`. Unwinders look up the byte before a return address, so each stub
    // begins with `nop`.
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
    "tllmprof_return_stub tllmprof_return_stubs, 32 * tllmprof_i",
    ".set tllmprof_i, tllmprof_i + 1",
    ".endr",
    ".cfi_endproc",
    ".size tllmprof_return_stubs, . - tllmprof_return_stubs",
    // Macro: a return stub for a call that is a scope (GPU work is attributed to it). Each such stub has its own
    // entry in the tables for unwinders.
    ".macro tllmprof_scope_stub",
    ".p2align 6",
    ".cfi_startproc",
    ".cfi_personality 0x1b, tllmprof_scope_passes\\@",
    ".cfi_signal_frame",
    "tllmprof_return_stub tllmprof_scope_stubs, 64 * (tllmprof_i - {returns})",
    // The stub's number goes into `r9d`, the sixth argument, after the five arguments of a personality routine. The
    // routine needs a symbol because GNU's linker merges personality routines that have no name.
    ".hidden tllmprof_scope_passes\\@",
    ".globl tllmprof_scope_passes\\@",
    "tllmprof_scope_passes\\@:",
    "mov r9d, tllmprof_i",
    "jmp {passes}",
    ".cfi_endproc",
    ".set tllmprof_i, tllmprof_i + 1",
    ".endm",
    ".p2align 6",
    ".hidden tllmprof_scope_stubs",
    ".globl tllmprof_scope_stubs",
    ".type tllmprof_scope_stubs,@function",
    "tllmprof_scope_stubs:",
    ".set tllmprof_i, {returns}",
    ".rept {scopes}",
    "tllmprof_scope_stub",
    ".endr",
    ".size tllmprof_scope_stubs, . - tllmprof_scope_stubs",
    ".purgem tllmprof_scope_stub",
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
    scopes = const SCOPES,
    passes = sym crate::named::passes,
    cells = const Block::CELLS,
);

/// Defines code that calls a Rust function before the intercepted function runs.
///
/// The stack holds, from the top: the return address in the stub, `r11`, and the return address of the intercepted
/// call. The code preserves all registers except the flags. In the unwind information, this code has the same caller as
/// the intercepted call.
macro_rules! ways {
    ($($(#[$attribute:meta])* $name:ident: $before:path;)*) => {$(
        $(#[$attribute])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                ".cfi_def_cfa rsp, 24",
                "push rbp",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset rbp, -32",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                save_all!(),
                "lea rdi, [rbp + 24]",
                "mov rsi, qword ptr [rbp + 8]",
                "call {before}",
                restore_all!(),
                ".cfi_def_cfa rsp, 24",
                ".cfi_same_value rbp",
                "ret",
                ".cfi_endproc",
                area = sym AREA,
                mask = sym MASK,
                legacy = const LEGACY,
                before = sym $before,
            )
        }
    )*};
}

ways! {
    /// The stub or the trampoline (the code to which a patched entry jumps) calls this code if the thread has no cells
    /// (call counters) yet, or if its count is past its limit: the number of calls that the thread may count before a
    /// Rust function must run.
    slow: crate::named::before;
    /// The trampoline of a function whose calls are scopes (GPU work is attributed to them) calls this code at each
    /// call of the function.
    scope: crate::named::scope_begins;
}

/// A return stub jumps here when a call returns, if the library must see the end of that call. Calls a Rust function,
/// and then returns to the caller. The stack holds the stub's index in [`AWAITED`] and the address at which the caller
/// continues. The handler preserves every register that carries a result or that a call must preserve.
#[unsafe(naked)]
unsafe extern "C" fn returned() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rsp, 16",
        "push rbp",
        ".cfi_def_cfa_offset 24",
        ".cfi_offset rbp, -24",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        save_all!(),
        // A result may be on the x87 stack, which must be empty when a function is called.
        "emms",
        "mov rdi, qword ptr [rbp + 8]",
        "call {after}",
        restore_all!(),
        ".cfi_def_cfa rsp, 16",
        ".cfi_same_value rbp",
        "lea rsp, [rsp + 8]",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        area = sym AREA,
        mask = sym MASK,
        legacy = const LEGACY,
        after = sym crate::named::after,
    )
}
