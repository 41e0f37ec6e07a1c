//! Assembly code that runs when the program calls an intercepted CUDA function, for x86-64 (System V ABI).
//!
//! Each intercepted function has a thunk: a structure with its handler and with the address of the real function (the
//! function in the CUDA library). The program calls the thunk's stub, which loads the thunk's address and jumps to the
//! handler. Most functions use the handler [`count`]: it adds one to the calling thread's counter for that call (its
//! cell) and jumps to the real function. An intercepted call takes about twelve instructions in this way.
//!
//! The stubs and [`count`] change only `rax`, `r10`, `r11` and the flags. None of these carries an argument of a C
//! function with a fixed number of arguments. They leave no frame on the stack, and the return address stays the
//! caller's. So exceptions and stack traces lead from the real function directly to the caller. A call that may begin
//! or end a step, or whose return the library must see, is handled by [`slow`] or [`record`], which save the arguments
//! and call Rust functions.

use core::arch::{global_asm, naked_asm};

use tllmprof_platform::thread::Block;
use tllmprof_steps::step::threads::Cell;

use crate::export::{Binding, Export};
use crate::frame::{CallFrame, STACK_WORDS};
use crate::stubs;
use crate::thunk::{THUNK_SIZE, Thunk};

/// Saves the argument registers and `r11` below `rbp`, with the layout of [`CallFrame`]. `r11` holds the address of the
/// thunk (which describes the real function) or, in `bind`, that of the [`Export`].
macro_rules! save {
    () => {
        "mov qword ptr [rbp - {frame} + {thunk}], r11
         mov qword ptr [rbp - {frame} + {args} + 0], rdi
         mov qword ptr [rbp - {frame} + {args} + 8], rsi
         mov qword ptr [rbp - {frame} + {args} + 16], rdx
         mov qword ptr [rbp - {frame} + {args} + 24], rcx
         mov qword ptr [rbp - {frame} + {args} + 32], r8
         mov qword ptr [rbp - {frame} + {args} + 40], r9
         movups xmmword ptr [rbp - {vectors} + 0], xmm0
         movups xmmword ptr [rbp - {vectors} + 16], xmm1
         movups xmmword ptr [rbp - {vectors} + 32], xmm2
         movups xmmword ptr [rbp - {vectors} + 48], xmm3
         movups xmmword ptr [rbp - {vectors} + 64], xmm4
         movups xmmword ptr [rbp - {vectors} + 80], xmm5
         movups xmmword ptr [rbp - {vectors} + 96], xmm6
         movups xmmword ptr [rbp - {vectors} + 112], xmm7"
    };
}

/// Restores the argument registers. Leaves `rax` and `r11` unchanged.
macro_rules! restore {
    () => {
        "mov rdi, qword ptr [rbp - {frame} + {args} + 0]
         mov rsi, qword ptr [rbp - {frame} + {args} + 8]
         mov rdx, qword ptr [rbp - {frame} + {args} + 16]
         mov rcx, qword ptr [rbp - {frame} + {args} + 24]
         mov r8, qword ptr [rbp - {frame} + {args} + 32]
         mov r9, qword ptr [rbp - {frame} + {args} + 40]
         movups xmm0, xmmword ptr [rbp - {vectors} + 0]
         movups xmm1, xmmword ptr [rbp - {vectors} + 16]
         movups xmm2, xmmword ptr [rbp - {vectors} + 32]
         movups xmm3, xmmword ptr [rbp - {vectors} + 48]
         movups xmm4, xmmword ptr [rbp - {vectors} + 64]
         movups xmm5, xmmword ptr [rbp - {vectors} + 80]
         movups xmm6, xmmword ptr [rbp - {vectors} + 96]
         movups xmm7, xmmword ptr [rbp - {vectors} + 112]"
    };
}

/// Adds one to the thread's cell (its counter for this call) and jumps to the real function, or to `slow` if the count
/// is past the cell's limit. `rax` holds the address of the thread's cells. `r11` holds the address of the thunk, which
/// describes the real function.
macro_rules! count_and_go {
    () => {
        "add rax, qword ptr [r11 + {cell}]
         mov r10, qword ptr [rax + {tally}]
         inc r10
         mov qword ptr [rax + {tally}], r10
         cmp r10, qword ptr [rax + {limit}]
         ja {slow}
         jmp qword ptr [r11 + {real}]"
    };
}

/// Saves the three arguments of a symbol look-up. The stack is then aligned for a call.
macro_rules! push {
    () => {
        "push rdi
         .cfi_adjust_cfa_offset 8
         push rsi
         .cfi_adjust_cfa_offset 8
         push rdx
         .cfi_adjust_cfa_offset 8"
    };
}

/// Restores the arguments that `push` saved.
macro_rules! pop {
    () => {
        "pop rdx
         .cfi_adjust_cfa_offset -8
         pop rsi
         .cfi_adjust_cfa_offset -8
         pop rdi
         .cfi_adjust_cfa_offset -8"
    };
}

global_asm!(
    // The pool of stubs, whose addresses callers get in place of the real functions' addresses. Stub number i loads
    // the address of thunk number i, which describes a real function, and jumps to the thunk's handler.
    ".section .text.tllmprof_stubs,\"ax\",@progbits",
    ".p2align 6",
    ".hidden tllmprof_stubs",
    ".globl tllmprof_stubs",
    ".type tllmprof_stubs,@function",
    "tllmprof_stubs:",
    ".cfi_startproc",
    ".set tllmprof_i, 0",
    ".rept {count}",
    ".p2align 4",
    "lea r11, [rip + {thunks} + tllmprof_i]",
    "jmp qword ptr [r11 + {goes_to}]",
    ".set tllmprof_i, tllmprof_i + {size}",
    ".endr",
    ".cfi_endproc",
    ".size tllmprof_stubs, . - tllmprof_stubs",
    // The pool of counting stubs, for driver functions whose calls are only counted, and not recorded or timed, during
    // the whole life of the process. Each stub (the code that callers get) contains the code of `count`, which saves a
    // jump.
    ".p2align 6",
    ".hidden tllmprof_counting_stubs",
    ".globl tllmprof_counting_stubs",
    ".type tllmprof_counting_stubs,@function",
    "tllmprof_counting_stubs:",
    ".cfi_startproc",
    ".set tllmprof_i, 0",
    ".rept {count}",
    ".p2align 6",
    "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
    "lea r11, [rip + {thunks} + tllmprof_i]",
    "mov rax, qword ptr fs:[r10 + {cells}]",
    "cmp rsp, qword ptr fs:[r10 + {outer}]",
    "jb 2f",
    "test rax, rax",
    "jz 2f",
    count_and_go!(),
    "2: jmp {handler}",
    ".set tllmprof_i, tllmprof_i + {size}",
    ".endr",
    ".p2align 6",
    ".hidden tllmprof_counting_stubs_end",
    ".globl tllmprof_counting_stubs_end",
    "tllmprof_counting_stubs_end:",
    ".cfi_endproc",
    ".size tllmprof_counting_stubs, . - tllmprof_counting_stubs",
    // The code that runs on each recorded call has its own section, which begins at a cache line. The handler
    // `record` comes first.
    ".section .text.hot.tllmprof,\"ax\",@progbits",
    ".p2align 6",
    ".text",
    count = const stubs::COUNT,
    size = const THUNK_SIZE,
    thunks = sym crate::thunk::THUNKS,
    handler = sym count,
    slow = sym slow,
    cells = const Block::CELLS,
    outer = const Block::OUTER,
    goes_to = const Thunk::HANDLER,
    real = const Thunk::REAL,
    cell = const Thunk::CELL,
    tally = const Cell::COUNT,
    limit = const Cell::LIMIT,
);

/// Handler that counts the call in the thread's cell (its counter for this call) and jumps to the real function.
///
/// If the count is past the cell's limit, or if the thread has no cells yet, jumps to [`slow`] instead. A call that is
/// nested in another intercepted call is not counted.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn count() {
    naked_asm!(
        "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
        "cmp rsp, qword ptr fs:[r10 + {outer}]",
        "jb 2f",
        "3:",
        "mov rax, qword ptr fs:[r10 + {cells}]",
        "test rax, rax",
        "jz {slow}",
        count_and_go!(),
        // The stack pointer is below the stack address of an outer call's return address, so this call is nested in
        // the outer call and is not counted. The exception is an outer call that was left by `longjmp`: then its
        // return address is no longer at that stack address.
        "2:",
        "mov rax, qword ptr fs:[r10 + {outer}]",
        "mov rax, qword ptr [rax]",
        "cmp rax, qword ptr fs:[r10 + {outer_return}]",
        "jne 3b",
        "jmp qword ptr [r11 + {real}]",
        slow = sym slow,
        cells = const Block::CELLS,
        outer = const Block::OUTER,
        real = const Thunk::REAL,
        cell = const Thunk::CELL,
        tally = const Cell::COUNT,
        limit = const Cell::LIMIT,
        outer_return = const Block::OUTER_RETURN,
    )
}

/// Defines a handler that writes a call into the thread's trail (its recent calls, for the step learner) and then
/// jumps to `count` or `record`, as `$go` says.
macro_rules! noting {
    ($name:ident, $go:ident, argument(first) $(, counts $counter:ident)?) => {
        noting!(@ $name, $go, "rdi" $(, counts $counter)?);
    };
    ($name:ident, $go:ident, argument(second) $(, counts $counter:ident)?) => {
        noting!(@ $name, $go, "rsi" $(, counts $counter)?);
    };
    ($name:ident, $go:ident, number($value:expr) $(, counts $counter:ident)?) => {
        noting!(@ $name, $go, "{token}" $(, counts $counter)?, token = $value);
    };
    (@ $name:ident, $go:ident, $token:literal $(, counts $counter:ident)? $(, token = $value:expr)?) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
                "mov rax, qword ptr fs:[r10 + {trail}]",
                "test rax, rax",
                "jz {go}",
                "mov r10d, dword ptr [rax + {calls}]",
                "inc dword ptr [rax + {calls}]",
                "and r10d, {last}",
                concat!("mov qword ptr [rax + 8 * r10 + {tokens}], ", $token),
                $(concat!("inc dword ptr [rax + {", stringify!($counter), "}]"),)?
                "jmp {go}",
                calls = const Trail::CALLS,
                tokens = const Trail::TOKENS,
                last = const Trail::LENGTH - 1,
                $($counter = const Trail::$counter,)?
                $(token = const $value,)?
                go = sym $crate::arch::doors::$go,
                trail = const tllmprof_platform::thread::Block::TRAIL,
            )
        }
    };
}
pub(crate) use noting;

/// Handler that counts the call like [`count`], calls the real function, and then calls
/// [`crate::returned::recorded`], which records the call with its duration. If the count is past the cell's limit, or
/// if the thread has no cells yet, the handler jumps to [`slow`], which calls the real function and records the call.
///
/// A call that is nested in another call of the program is recorded but not counted. A call that this library makes
/// is not recorded. None of the functions that use this handler takes a floating-point number, so the Rust code that
/// the handler calls may change the floating-point registers. The frame has the layout that [`slow`] uses.
// SAFETY: the attribute only names a section, which keeps together the code that runs on each recorded call.
#[unsafe(link_section = ".text.hot.tllmprof")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn record() {
    naked_asm!(
        ".cfi_startproc",
        "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
        "cmp rsp, qword ptr fs:[r10 + {outer}]",
        "jb 2f",
        "3:",
        "mov rax, qword ptr fs:[r10 + {cells}]",
        "test rax, rax",
        "jz {slow}",
        "add rax, qword ptr [r11 + {cell}]",
        "mov r10, qword ptr [rax + {tally}]",
        "inc r10",
        "mov qword ptr [rax + {tally}], r10",
        "cmp r10, qword ptr [rax + {limit}]",
        "ja {slow}",
        "4:",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_remember_state",
        ".cfi_def_cfa_register rbp",
        "sub rsp, {frame} + 8 * {words}",
        "mov qword ptr [rbp - {frame} + {thunk}], r11",
        "mov qword ptr [rbp - {frame} + {args} + 0], rdi",
        "mov qword ptr [rbp - {frame} + {args} + 8], rsi",
        "mov qword ptr [rbp - {frame} + {args} + 16], rdx",
        "mov qword ptr [rbp - {frame} + {args} + 24], rcx",
        ".set tllmprof_word, 0",
        ".rept {words}",
        "mov r10, qword ptr [rbp + 16 + tllmprof_word]",
        "mov qword ptr [rsp + tllmprof_word], r10",
        ".set tllmprof_word, tllmprof_word + 8",
        ".endr",
        "mov qword ptr [rbp - {frame} + {args} + 32], r8",
        "mov qword ptr [rbp - {frame} + {args} + 40], r9",
        "mov qword ptr [rbp - {frame} + {work}], 0",
        // Most recorded calls need no work before the real function is called. For these calls, skip the call of
        // `entered` at label 6.
        "cmp byte ptr [r11 + {does}], 0",
        "je 6f",
        "cmp dword ptr [rip + {looks}], 0",
        "jne 6f",
        "7:",
        "mov r10, rdx",
        "rdtsc",
        "shl rdx, 32",
        "or rax, rdx",
        "mov qword ptr [rbp - {frame} + {since}], rax",
        "mov rdx, r10",
        "xor eax, eax",
        "call qword ptr [r11 + {real}]",
        "mov rsi, rax",
        "rdtsc",
        "shl rdx, 32",
        "or rdx, rax",
        "lea rdi, [rbp - {frame}]",
        "call {returned}",
        "leave",
        ".cfi_restore_state",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_def_cfa rbp, 16",
        ".cfi_offset rbp, -16",
        "6:",
        "test dword ptr [rip + {looks}], {other_clock}",
        "jnz 8f",
        "lea rdi, [rbp - {frame}]",
        "call {entered}",
        "mov r11, qword ptr [rbp - {frame} + {thunk}]",
        "mov rdi, qword ptr [rbp - {frame} + {args} + 0]",
        "mov rsi, qword ptr [rbp - {frame} + {args} + 8]",
        "mov rdx, qword ptr [rbp - {frame} + {args} + 16]",
        "mov rcx, qword ptr [rbp - {frame} + {args} + 24]",
        "mov r8, qword ptr [rbp - {frame} + {args} + 32]",
        "mov r9, qword ptr [rbp - {frame} + {args} + 40]",
        "jmp 7b",
        // On this system the record's clock is not the processor's time-stamp counter. Only `slow`, which calls
        // Rust code before and after the real function, can read the time.
        "8:",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "jmp {slow}",
        // The stack pointer is below the stack address of an outer call's return address, so this call may be nested
        // in the outer call. `count` explains the check.
        "2:",
        "mov rax, qword ptr fs:[r10 + {outer}]",
        "mov rax, qword ptr [rax]",
        "cmp rax, qword ptr fs:[r10 + {outer_return}]",
        "jne 3b",
        "test rax, rax",
        "jnz 4b",
        "jmp qword ptr [r11 + {real}]",
        ".cfi_endproc",
        other_clock = const tllmprof_recorder::Looks::Clock as u32,
        looks = sym tllmprof_recorder::LOOKS,
        slow = sym slow,
        entered = sym crate::entered::recorded,
        returned = sym crate::returned::recorded,
        words = const STACK_WORDS,
        frame = const CallFrame::BELOW,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        since = const CallFrame::SINCE,
        work = const CallFrame::WORK,
        does = const Thunk::DOES,
        real = const Thunk::REAL,
        cell = const Thunk::CELL,
        tally = const Cell::COUNT,
        limit = const Cell::LIMIT,
        cells = const Block::CELLS,
        outer = const Block::OUTER,
        outer_return = const Block::OUTER_RETURN,
    )
}

/// Handler that calls [`crate::entered::before`], then either jumps to the real function, or calls the real function
/// and then [`crate::returned::after`].
///
/// The handler saves the registers that may carry arguments: six integer and eight vector registers. The frame has call
/// frame information and no personality, so that an exception passes through it.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn slow() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, {vectors} + 0x10",
        save!(),
        "lea rdi, [rbp - {frame}]",
        "call {before}",
        restore!(),
        "test eax, eax",
        "jnz 2f",
        "mov r11, qword ptr [rbp - {frame} + {thunk}]",
        "leave",
        ".cfi_remember_state",
        ".cfi_def_cfa rsp, 8",
        "jmp qword ptr [r11 + {real}]",
        ".cfi_restore_state",
        "2:",
        "sub rsp, 8 * {words}",
        ".set tllmprof_word, 0",
        ".rept {words}",
        "mov r10, qword ptr [rbp + 16 + tllmprof_word]",
        "mov qword ptr [rsp + tllmprof_word], r10",
        ".set tllmprof_word, tllmprof_word + 8",
        ".endr",
        "mov r11, qword ptr [rbp - {frame} + {thunk}]",
        "xor eax, eax",
        "call qword ptr [r11 + {real}]",
        "mov qword ptr [rbp - {vectors} - 8], rax",
        "lea rdi, [rbp - {frame}]",
        "mov rsi, rax",
        "call {after}",
        "mov rax, qword ptr [rbp - {vectors} - 8]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        before = sym crate::entered::before,
        after = sym crate::returned::after,
        words = const STACK_WORDS,
        frame = const CallFrame::BELOW,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        vectors = const CallFrame::VECTORS,
        real = const Thunk::REAL,
    )
}

/// Handler of a call that asks whether GPU work has finished, such as `cuEventQuery`. Such a function has one argument,
/// which is not a floating-point number. The handler passes the argument on to [`crate::polls::queried`], with the
/// thunk (which describes the real function) and the stack address of the return address.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn query() {
    naked_asm!(
        "mov rsi, r11",
        "mov rdx, rsp",
        "jmp {queried}",
        queried = sym crate::polls::queried,
    )
}

/// The stub of an exported function (the code that callers get as the function). It compares the caller's address with
/// the first module that the function's [`crate::export::Export`] remembers. If the caller is in that module, the stub
/// jumps to the module's thunk, which describes the real function.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_stub {
    ($export:ident, $exported:path) => {
        core::arch::naked_asm!(
            "lea r11, [rip + {export}]",
            "mov rax, qword ptr [rsp]",
            "mov r10, qword ptr [r11 + {recent}]",
            "sub rax, qword ptr [r10 + {start}]",
            "cmp rax, qword ptr [r10 + {length}]",
            "jae {exported}",
            "mov r11, qword ptr [r10 + {thunk}]",
            "jmp qword ptr [r11 + {goes_to}]",
            export = sym $export,
            exported = sym $exported,
            recent = const $crate::export::Export::RECENT,
            start = const $crate::export::Binding::START,
            length = const $crate::export::Binding::LENGTH,
            thunk = const $crate::export::Binding::THUNK,
            goes_to = const $crate::export::HANDLER,
        )
    };
}

/// Second part of the code of an exported function. `r11` holds the address of its [`crate::export::Export`].
///
/// The real function to call depends on the caller's module. Each export remembers four modules and the thunk for each.
/// The stub has compared the caller's address with the first module. This code compares the address with the other
/// three modules, and jumps to `bind` if the caller is in none of the four.
#[unsafe(naked)]
pub unsafe extern "C" fn exported() {
    naked_asm!(
        ".irp slot, 1, 2, 3",
        "mov rax, qword ptr [rsp]",
        "mov r10, qword ptr [r11 + {recent} + 8 * \\slot]",
        "sub rax, qword ptr [r10 + {start}]",
        "cmp rax, qword ptr [r10 + {length}]",
        "jb 2f",
        ".endr",
        "jmp {bind}",
        "2:",
        "mov r11, qword ptr [r10 + {thunk}]",
        "jmp qword ptr [r11 + {goes_to}]",
        bind = sym bind,
        recent = const Export::RECENT,
        start = const Binding::START,
        length = const Binding::LENGTH,
        thunk = const Binding::THUNK,
        goes_to = const Thunk::HANDLER,
    )
}

/// Calls [`crate::export::bind`] to find the real function for this caller, and jumps to the handler of the thunk that
/// describes the real function.
#[unsafe(naked)]
unsafe extern "C" fn bind() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, {vectors}",
        save!(),
        "mov rdi, r11",
        "mov rsi, qword ptr [rbp + 8]",
        "call {bind}",
        "mov r11, rax",
        restore!(),
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp qword ptr [r11 + {goes_to}]",
        ".cfi_endproc",
        bind = sym crate::export::bind,
        frame = const CallFrame::BELOW,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        vectors = const CallFrame::VECTORS,
        goes_to = const Thunk::HANDLER,
    )
}

/// Handler for a function that no module defines. Returns 3, which means "not initialised" in both the driver and the
/// runtime.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn missing() {
    naked_asm!("mov eax, 3", "ret")
}

/// Defines a look-up function (`dlsym` or `dlvsym`), which finds its caller by the return address. A look-up that does
/// not concern CUDA or NCCL is passed on by a jump, so that the real function sees the same return address.
macro_rules! door {
    ($vis:vis $name:ident, caller in $caller:literal, version: $version:literal, $lookup:path, $real:path) => {
        /// Code that the exported look-up function jumps to.
        #[unsafe(naked)]
        $vis unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "test rsi, rsi",
                "jz 2f",
                "cmp byte ptr [rip + {are_named}], 0",
                "jne 5f",
                "6:",
                "cmp byte ptr [rsi], 0x63", // 'c'
                "jne 7f",
                "cmp byte ptr [rsi + 1], 0x75", // 'u'
                "jne 2f",
                "8:",
                push!(),
                "call {wanted}",
                pop!(),
                "test al, al", // a bool: the upper bits of eax are undefined
                "jz 2f",
                concat!("mov ", $caller, ", qword ptr [rsp]"),
                "jmp {lookup}",
                "2:",
                "mov rax, qword ptr [rip + {real}]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                // This library has not been initialised yet, so the address of the real look-up function is unknown.
                // Find it now.
                "3:",
                push!(),
                "call {find}",
                pop!(),
                "mov rax, qword ptr [rip + {real}]",
                "test rax, rax",
                "jz 4f",
                "jmp rax",
                // The process has an old glibc without libdl, so there is no look-up function to
                // call.
                "4:",
                "ret",
                // A step rule may name the function that is looked up. Ask `named`, which first searches modules that
                // were just loaded. If it returns the address of a stub (code that counts calls), that address is the
                // result. If it returns 0, continue at label 6.
                "5:",
                push!(),
                $version,
                "mov rcx, qword ptr [rsp + 24]",
                "call {named}",
                pop!(),
                "test rax, rax",
                "jz 6b",
                "ret",
                "7:",
                "cmp byte ptr [rsi], 0x6e", // 'n'
                "jne 2b",
                "cmp byte ptr [rsi + 1], 0x63", // 'c'
                "jne 2b",
                "cmp byte ptr [rsi + 2], 0x63", // 'c'
                "jne 2b",
                "jmp 8b",
                ".cfi_endproc",
                wanted = sym crate::dlsym::wanted,
                lookup = sym $lookup,
                find = sym crate::dlsym::find_real,
                are_named = sym tllmprof_platform::modules::ARE_WATCHED,
                named = sym crate::named::lookup,
                real = sym $real,
            )
        }
    };
}
door!(pub dlsym_door, caller in "rdx", version: "xor edx, edx", crate::dlsym::lookup, crate::dlsym::REAL_DLSYM);
door!(pub(crate) front_dlsym_door, caller in "rdx", version: "xor edx, edx", crate::dlsym::lookup_by_front, crate::dlsym::FRONT_DLSYM);
door!(dlvsym_of_cuda, caller in "rcx", version: "nop", crate::dlsym::lookup_version, crate::dlsym::REAL_DLVSYM);

/// Code that the exported `dlvsym` jumps to. Another library that defines `dlsym` may look up the next `dlsym` in
/// load order with `dlvsym` and a version. The real `dlvsym` would skip this library's `dlsym`, which has no version,
/// so this code returns the address of this library's `dlsym`.
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym_door() {
    naked_asm!(
        ".cfi_startproc",
        "cmp rdi, -1", // RTLD_NEXT
        "jne {others}",
        "test rsi, rsi",
        "jz {others}",
        "cmp byte ptr [rsi], 0x64", // 'd'
        "jne {others}",
        push!(),
        "mov rdi, rsi",
        "mov rsi, qword ptr [rsp + 24]",
        "call {are_next}",
        pop!(),
        "test al, al",
        "jz {others}",
        "lea rax, [rip + {dlsym}]",
        "ret",
        ".cfi_endproc",
        others = sym dlvsym_of_cuda,
        are_next = sym crate::dlsym::are_next,
        dlsym = sym dlsym_door,
    )
}
