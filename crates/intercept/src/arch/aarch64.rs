//! Assembly code that runs when the program calls an intercepted CUDA function, for AArch64 (AAPCS64, little endian).
//!
//! Each intercepted function has a thunk: a structure with its handler and with the address of the real function (the
//! function in the CUDA library). The program calls the thunk's stub, which loads the thunk's address and jumps to the
//! handler. Most functions use the handler [`count`]: it adds one to the calling thread's counter for that call (its
//! cell) and jumps to the real function. If this process will never record or time a driver function's calls, but only
//! count them, the function's stub contains the code of [`count`], which saves a jump. An intercepted call takes about
//! twenty instructions in this way.
//!
//! These counting stubs change only `x16`, `x17` and the flags, which a linker's veneer may change at any call. The
//! handlers, and the stubs of exported functions (to which the loader binds the program), also change `x9` to `x15`,
//! which lazy binding and any called function may change. None of these registers carries an argument (`x0` to `x7`,
//! `q0` to `q7`) or the address of a result (`x8`).
//! The code leaves no frame on the stack, and the return address (in `x30`, unsigned) stays the caller's. So
//! exceptions and stack traces lead from the real function directly to the caller. A call that is recorded, or that
//! may begin or end a step, is handled by [`slow`], which saves the arguments and calls a Rust function.
//!
//! Each cell has a limit. A call that counts past the limit goes to [`slow`]. The code loads the limit after it stores
//! the count. This order matters: a thread that lowers the limit runs a barrier on every thread and then reads the
//! count, so no call is missed.
//!
//! Code that is reached by an indirect jump begins with `bti c` (`hint #34`). The jumps use `x16` or `x17`, because
//! `bti c` at the target accepts only these registers.

use core::arch::{global_asm, naked_asm};

use tllmprof_platform::thread::Block;
use tllmprof_steps::step::threads::Cell;

use crate::export::{Binding, Export};
use crate::frame::{CallFrame, STACK_WORDS};
use crate::stubs;
use crate::thunk::{THUNK_SIZE, Thunk};

// The assembly code loads each of these pairs of fields with one `ldp` instruction, so the fields must be adjacent.
const _: () = assert!(Block::OUTER == Block::CELLS + 8);
const _: () = assert!(Thunk::CELL == Thunk::REAL + 8);

/// Pushes a frame with the layout of [`CallFrame`]. Saves the registers that may carry arguments. Also saves
/// `$register`, which holds the address of the [`Thunk`] or `Export` that describes the called function.
macro_rules! save {
    ($register:literal) => {
        concat!(
            "stp x29, x30, [sp, #-{frame}]!
             .cfi_def_cfa_offset {frame}
             .cfi_offset x29, -{frame}
             .cfi_offset x30, -{frame} + 8
             mov x29, sp
             .cfi_def_cfa_register x29
             stp ",
            $register,
            ", x8, [x29, #{thunk}]
             stp x0, x1, [x29, #{args} + 0]
             stp x2, x3, [x29, #{args} + 16]
             stp x4, x5, [x29, #{args} + 32]
             stp x6, x7, [x29, #{args} + 48]
             stp q0, q1, [x29, #{vectors} + 0]
             stp q2, q3, [x29, #{vectors} + 32]
             stp q4, q5, [x29, #{vectors} + 64]
             stp q6, q7, [x29, #{vectors} + 96]"
        )
    };
}

/// Restores the registers that [`save`] saved, and loads the address of the thunk (which describes the real function)
/// into `x16`. Leaves `x17` unchanged and does not pop the frame.
macro_rules! restore {
    () => {
        "ldp x16, x8, [x29, #{thunk}]
         ldp x0, x1, [x29, #{args} + 0]
         ldp x2, x3, [x29, #{args} + 16]
         ldp x4, x5, [x29, #{args} + 32]
         ldp x6, x7, [x29, #{args} + 48]
         ldp q0, q1, [x29, #{vectors} + 0]
         ldp q2, q3, [x29, #{vectors} + 32]
         ldp q4, q5, [x29, #{vectors} + 64]
         ldp q6, q7, [x29, #{vectors} + 96]"
    };
}

/// Pops the frame that [`save`] pushed.
macro_rules! leave {
    () => {
        "mov sp, x29
         .cfi_def_cfa_register sp
         ldp x29, x30, [sp], #{frame}
         .cfi_def_cfa_offset 0
         .cfi_restore x29
         .cfi_restore x30"
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
    ".p2align 5",
    "hint #34",
    "adrp x16, {thunks} + tllmprof_i",
    "add x16, x16, :lo12:{thunks} + tllmprof_i",
    "ldr x17, [x16, #{goes_to}]",
    "br x17",
    ".set tllmprof_i, tllmprof_i + {size}",
    ".endr",
    ".p2align 5",
    ".cfi_endproc",
    ".size tllmprof_stubs, . - tllmprof_stubs",
    // The pool of counting stubs, for driver functions whose calls are only counted, and not recorded or timed, during
    // the whole life of the process. Each stub (the code that callers get) contains the code of `count`, which saves a
    // jump. This code needs only two registers, `x16` and `x17`.
    ".p2align 7",
    ".hidden tllmprof_counting_stubs",
    ".globl tllmprof_counting_stubs",
    ".type tllmprof_counting_stubs,@function",
    "tllmprof_counting_stubs:",
    ".cfi_startproc",
    ".set tllmprof_i, 0",
    ".rept {count}",
    ".p2align 7",
    "hint #34",
    "adrp x16, :gottprel:tllmprof_tls",
    "ldr x16, [x16, :gottprel_lo12:tllmprof_tls]",
    "mrs x17, tpidr_el0",
    "add x16, x16, x17",
    "ldr x17, [x16, #{outer}]",
    "cmp sp, x17",
    "b.lo 2f",
    "ldr x16, [x16, #{cells}]",
    "cbz x16, 2f",
    "adrp x17, {thunks} + tllmprof_i + {cell}",
    "ldr x17, [x17, :lo12:{thunks} + tllmprof_i + {cell}]",
    "add x16, x16, x17",
    "ldr x17, [x16, #{tally}]",
    "add x17, x17, #1",
    "str x17, [x16, #{tally}]",
    "ldr x16, [x16, #{limit}]",
    "cmp x17, x16",
    "b.hi 3f",
    "adrp x16, {thunks} + tllmprof_i + {real}",
    "ldr x16, [x16, :lo12:{thunks} + tllmprof_i + {real}]",
    "br x16",
    "2: adrp x16, {thunks} + tllmprof_i",
    "add x16, x16, :lo12:{thunks} + tllmprof_i",
    "b {handler}",
    "3: adrp x16, {thunks} + tllmprof_i",
    "add x16, x16, :lo12:{thunks} + tllmprof_i",
    "b {slow}",
    ".set tllmprof_i, tllmprof_i + {size}",
    ".endr",
    ".p2align 7",
    ".hidden tllmprof_counting_stubs_end",
    ".globl tllmprof_counting_stubs_end",
    "tllmprof_counting_stubs_end:",
    ".cfi_endproc",
    ".size tllmprof_counting_stubs, . - tllmprof_counting_stubs",
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
/// If the count is past the cell's limit, or if the thread has no cells yet, jumps to [`slow`] instead. For a call that
/// may be nested in another intercepted call, [`crate::entered::is_within_outer`] decides whether to count.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn count() {
    naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "adrp x17, :gottprel:tllmprof_tls",
        "ldr x17, [x17, :gottprel_lo12:tllmprof_tls]",
        "mrs x9, tpidr_el0",
        "add x17, x17, x9",
        "ldp x9, x10, [x17, #{cells}]",
        "cmp sp, x10",
        "b.lo 2f",
        "cbz x9, 3f",
        "ldp x17, x10, [x16, #{real}]",
        "add x9, x9, x10",
        "ldr x10, [x9, #{tally}]",
        "add x10, x10, #1",
        "str x10, [x9, #{tally}]",
        "ldr x9, [x9, #{limit}]",
        "cmp x10, x9",
        "b.hi 3f",
        "br x17",
        "3: b {slow}",
        "2:",
        save!("x16"),
        "mov x0, x29",
        "bl {is_nested}",
        "mov w17, w0",
        restore!(),
        leave!(),
        // `is_within_outer` returned false: the outer call has been left by `longjmp`, so this call is not nested and
        // is counted.
        "tbz w17, #0, {count}",
        "ldr x17, [x16, #{real}]",
        "br x17",
        ".cfi_endproc",
        frame = const CallFrame::SIZE,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        vectors = const CallFrame::VECTORS,
        slow = sym slow,
        count = sym count,
        is_nested = sym crate::entered::is_within_outer,
        cells = const Block::CELLS,
        real = const Thunk::REAL,
        tally = const Cell::COUNT,
        limit = const Cell::LIMIT,
    )
}

/// Defines a handler that writes a call into the thread's trail (its recent calls, for the step learner) and then
/// jumps to `count` or `record`, as `$go` says.
macro_rules! noting {
    ($name:ident, $go:ident, argument(first) $(, counts $counter:ident)?) => {
        noting!(@ $name, $go, "x0" $(, counts $counter)?);
    };
    ($name:ident, $go:ident, argument(second) $(, counts $counter:ident)?) => {
        noting!(@ $name, $go, "x1" $(, counts $counter)?);
    };
    ($name:ident, $go:ident, number($value:expr) $(, counts $counter:ident)?) => {
        noting!(@ $name, $go, "x11" $(, counts $counter)?, token = $value);
    };
    (@ $name:ident, $go:ident, $token:literal $(, counts $counter:ident)? $(, token = $value:expr)?) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "hint #34",
                "adrp x17, :gottprel:tllmprof_tls",
                "ldr x17, [x17, :gottprel_lo12:tllmprof_tls]",
                "mrs x9, tpidr_el0",
                "add x17, x17, x9",
                "ldr x9, [x17, #{trail}]",
                "cbz x9, 2f",
                "ldr w10, [x9, #{calls}]",
                "add w11, w10, #1",
                "str w11, [x9, #{calls}]",
                "and w10, w10, #{last}",
                "add x10, x9, w10, uxtw #3",
                $(concat!("mov x11, #{token}", noting!(@nothing $value)),)?
                concat!("str ", $token, ", [x10, #{tokens}]"),
                $(
                    concat!("ldr w10, [x9, #{", stringify!($counter), "}]"),
                    "add w10, w10, #1",
                    concat!("str w10, [x9, #{", stringify!($counter), "}]"),
                )?
                "2: b {go}",
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
    (@nothing $value:expr) => {
        ""
    };
}
pub(crate) use noting;

/// Handler that counts the call like [`count`], and jumps to [`slow`], which records the call.
///
/// A call that is nested in another call of the program is recorded but not counted.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn record() {
    naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "adrp x17, :gottprel:tllmprof_tls",
        "ldr x17, [x17, :gottprel_lo12:tllmprof_tls]",
        "mrs x9, tpidr_el0",
        "add x17, x17, x9",
        "ldp x9, x10, [x17, #{cells}]",
        "cmp sp, x10",
        "b.lo 2f",
        "cbz x9, 3f",
        "ldr x10, [x16, #{cell}]",
        "add x9, x9, x10",
        "ldr x10, [x9, #{tally}]",
        "add x10, x10, #1",
        "str x10, [x9, #{tally}]",
        "3: b {slow}",
        "2:",
        save!("x16"),
        "mov x0, x29",
        "bl {is_nested}",
        "mov w17, w0",
        restore!(),
        leave!(),
        "tbz w17, #0, {record}",
        "b {slow}",
        ".cfi_endproc",
        frame = const CallFrame::SIZE,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        vectors = const CallFrame::VECTORS,
        slow = sym slow,
        record = sym record,
        is_nested = sym crate::entered::is_within_outer,
        cells = const Block::CELLS,
        cell = const Thunk::CELL,
        tally = const Cell::COUNT,
    )
}

/// Handler that calls [`crate::entered::before`], then either jumps to the real function, or calls the real function
/// and then [`crate::returned::after`].
///
/// The handler saves the registers that may carry arguments: eight integer and eight vector registers, and the address
/// of a result. The frame has call frame information and no personality, so that an exception passes through it.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn slow() {
    naked_asm!(
        ".cfi_startproc",
        "hint #34",
        save!("x16"),
        "mov x0, x29",
        "bl {before}",
        "mov w17, w0",
        restore!(),
        "cbnz w17, 2f",
        "ldr x17, [x16, #{real}]",
        ".cfi_remember_state",
        leave!(),
        "br x17",
        ".cfi_restore_state",
        "2:",
        "sub sp, sp, #8 * {words}",
        ".set tllmprof_word, 0",
        ".rept {words} / 2",
        "ldp x9, x10, [x29, #{frame} + tllmprof_word]",
        "stp x9, x10, [sp, #tllmprof_word]",
        ".set tllmprof_word, tllmprof_word + 16",
        ".endr",
        "ldr x17, [x16, #{real}]",
        "blr x17",
        "stp x0, x1, [x29, #{vectors}]", // reuses the space of the vector arguments
        "mov x1, x0",
        "mov x0, x29",
        "bl {after}",
        "ldp x0, x1, [x29, #{vectors}]",
        leave!(),
        "ret",
        ".cfi_endproc",
        before = sym crate::entered::before,
        after = sym crate::returned::after,
        words = const STACK_WORDS,
        real = const Thunk::REAL,
        frame = const CallFrame::SIZE,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        vectors = const CallFrame::VECTORS,
    )
}

/// The stub of an exported function (the code that callers get as the function). It compares the caller's address with
/// the first module that the function's [`crate::export::Export`] remembers. If the caller is in that module, the stub
/// jumps to the module's thunk, which describes the real function.
///
/// A binding is a remembered module with its thunk. The stub reads the binding's length first, with acquire ordering.
/// The writer stores the length last, so a reader that sees the length also sees the other fields.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_stub {
    ($export:ident, $exported:path) => {
        core::arch::naked_asm!(
            "hint #34",
            "adrp x17, {export}",
            "add x17, x17, :lo12:{export}",
            "ldr x16, [x17, #{recent}]",
            "add x9, x16, #{length}",
            "ldar x9, [x9]",
            "ldr x10, [x16, #{start}]",
            "sub x10, x30, x10",
            "cmp x10, x9",
            "b.hs 2f",
            "ldr x16, [x16, #{thunk}]",
            "ldr x17, [x16, #{goes_to}]",
            "br x17",
            "2: b {exported}",
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

/// Second part of the code of an exported function. `x17` holds the address of its [`crate::export::Export`].
///
/// The real function to call depends on the caller's module. Each export remembers four modules and the thunk for each.
/// The stub has compared the caller's address with the first module. This code compares the address with the other
/// three modules, and jumps to `bind` if the caller is in none of the four.
#[unsafe(naked)]
pub unsafe extern "C" fn exported() {
    naked_asm!(
        ".irp slot, 1, 2, 3",
        "ldr x16, [x17, #{recent} + 8 * \\slot]",
        "add x9, x16, #{length}",
        "ldar x9, [x9]",
        "ldr x10, [x16, #{start}]",
        "sub x10, x30, x10",
        "cmp x10, x9",
        "b.lo 2f",
        ".endr",
        "b {bind}",
        "2:",
        "ldr x16, [x16, #{thunk}]",
        "ldr x17, [x16, #{goes_to}]",
        "br x17",
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
        save!("x17"),
        "mov x0, x17",
        "mov x1, x30",
        "bl {bind}",
        "str x0, [x29, #{thunk}]",
        restore!(),
        leave!(),
        "ldr x17, [x16, #{goes_to}]",
        "br x17",
        ".cfi_endproc",
        goes_to = const Thunk::HANDLER,
        frame = const CallFrame::SIZE,
        thunk = const CallFrame::THUNK,
        args = const CallFrame::ARGS,
        vectors = const CallFrame::VECTORS,
        bind = sym crate::export::bind,
    )
}

/// Handler for a function that no module defines. Returns 3, which means "not initialised" in both the driver and the
/// runtime.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn missing() {
    naked_asm!("hint #34", "mov w0, #3", "ret")
}

/// Handler of a call that asks whether GPU work has finished, such as `cuEventQuery`. Such a function has one argument,
/// which is not a floating-point number. The handler passes the argument on to [`crate::polls::queried`], with the
/// thunk (which describes the real function) and the stack pointer.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn query() {
    naked_asm!(
        "hint #34",
        "mov x1, x16",
        "mov x2, sp",
        "b {queried}",
        queried = sym crate::polls::queried,
    )
}

/// Calls a function of this library with the arguments of a symbol look-up, after running the instructions in `$added`.
/// The result is in `x16`.
macro_rules! ask {
    ($function:literal $(, $added:literal)*) => {
        concat!(
            "stp x29, x30, [sp, #-48]!
             .cfi_def_cfa_offset 48
             .cfi_offset x29, -48
             .cfi_offset x30, -40
             mov x29, sp
             stp x0, x1, [sp, #16]
             str x2, [sp, #32]
             ",
            $($added, "\n",)*
            "bl ",
            $function,
            "
             mov x16, x0
             ldp x0, x1, [sp, #16]
             ldr x2, [sp, #32]
             ldp x29, x30, [sp], #48
             .cfi_def_cfa_offset 0
             .cfi_restore x29
             .cfi_restore x30"
        )
    };
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
                "hint #34",
                "cbz x1, 2f",
                "adrp x16, {are_named}",
                "ldrb w16, [x16, :lo12:{are_named}]",
                "cbnz w16, 5f",
                "6:",
                "ldrb w16, [x1]",
                "cmp w16, #0x63", // 'c'
                "b.ne 7f",
                "ldrb w16, [x1, #1]",
                "cmp w16, #0x75", // 'u'
                "b.ne 2f",
                "8:",
                ask!("{wanted}"),
                "tbz w16, #0, 2f",
                concat!("mov ", $caller, ", x30"),
                "b {lookup}",
                "2:",
                "adrp x16, {real}",
                "ldr x16, [x16, :lo12:{real}]",
                "cbz x16, 3f",
                "br x16",
                // This library has not been initialised yet, so the address of the real look-up function is unknown.
                // Find it now.
                "3:",
                ask!("{find}"),
                "adrp x16, {real}",
                "ldr x16, [x16, :lo12:{real}]",
                "cbz x16, 4f",
                "br x16",
                // The process has an old glibc without libdl, so there is no look-up function to
                // call.
                "4:",
                "mov x0, xzr",
                "ret",
                // A step rule may name the function that is looked up. Ask `named`, which first searches modules that
                // were just loaded. If it returns the address of a stub (code that counts calls), that address is the
                // result. If it returns 0, continue at label 6.
                "5:",
                ask!("{named}", "mov x3, x30", $version),
                "cbz x16, 6b",
                "mov x0, x16",
                "ret",
                "7:",
                "cmp w16, #0x6e", // 'n'
                "b.ne 2b",
                "ldrb w16, [x1, #1]",
                "cmp w16, #0x63", // 'c'
                "b.ne 2b",
                "ldrb w16, [x1, #2]",
                "cmp w16, #0x63", // 'c'
                "b.ne 2b",
                "b 8b",
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
door!(pub dlsym_door, caller in "x2", version: "mov x2, xzr", crate::dlsym::lookup, crate::dlsym::REAL_DLSYM);
door!(pub(crate) front_dlsym_door, caller in "x2", version: "mov x2, xzr", crate::dlsym::lookup_by_front, crate::dlsym::FRONT_DLSYM);
door!(dlvsym_of_cuda, caller in "x3", version: "nop", crate::dlsym::lookup_version, crate::dlsym::REAL_DLVSYM);

/// Code that the exported `dlvsym` jumps to. Another library that defines `dlsym` may look up the next `dlsym` in
/// load order with `dlvsym` and a version. The real `dlvsym` would skip this library's `dlsym`, which has no version,
/// so this code returns the address of this library's `dlsym`.
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym_door() {
    naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "cmn x0, #1", // RTLD_NEXT
        "b.ne 2f",
        "cbz x1, 2f",
        "ldrb w16, [x1]",
        "cmp w16, #0x64", // 'd'
        "b.ne 2f",
        ask!("{are_next}", "mov x0, x1", "mov x1, x30"),
        "tbz w16, #0, 2f",
        "adrp x0, {dlsym}",
        "add x0, x0, :lo12:{dlsym}",
        "ret",
        "2:",
        "b {others}",
        ".cfi_endproc",
        others = sym dlvsym_of_cuda,
        are_next = sym crate::dlsym::are_next,
        dlsym = sym dlsym_door,
    )
}
