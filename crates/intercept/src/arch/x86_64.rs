//! The assembler of the doors, for x86-64 (System V ABI).
//!
//! Everything that runs on every intercepted call is here, a dozen instructions: the stubs, which
//! name the thunk, and [`count`], which adds one to the calling thread's cell and jumps to the real
//! function. It touches only `rax`, `r10`, `r11` and the flags, none of which carries an argument
//! of a C function, so it serves functions of any signature and leaves no frame behind: return
//! addresses, exceptions and stack traces are the caller's own. Whatever needs thought goes
//! through [`slow`], which saves the arguments and asks Rust.

use core::arch::{global_asm, naked_asm};
use core::cell::Cell;
use core::ffi::c_void;

use tllmprof_calls::Wait;
use tllmprof_learn::Trail;

use super::thunk::{THUNK_COUNT, THUNK_SIZE, Thunk};
use tllmprof_platform::thread::{Block, Outer};

/// Saves the argument registers and the thunk below `rbp`, as [`Frame`] lays them out.
macro_rules! save {
    () => {
        "mov qword ptr [rbp - 0x40], r11
         mov qword ptr [rbp - 0x38], rdi
         mov qword ptr [rbp - 0x30], rsi
         mov qword ptr [rbp - 0x28], rdx
         mov qword ptr [rbp - 0x20], rcx
         mov qword ptr [rbp - 0x18], r8
         mov qword ptr [rbp - 0x10], r9
         movups xmmword ptr [rbp - 0xc0], xmm0
         movups xmmword ptr [rbp - 0xb0], xmm1
         movups xmmword ptr [rbp - 0xa0], xmm2
         movups xmmword ptr [rbp - 0x90], xmm3
         movups xmmword ptr [rbp - 0x80], xmm4
         movups xmmword ptr [rbp - 0x70], xmm5
         movups xmmword ptr [rbp - 0x60], xmm6
         movups xmmword ptr [rbp - 0x50], xmm7"
    };
}

/// Puts the argument registers back; leaves `rax` and `r11`.
macro_rules! restore {
    () => {
        "mov rdi, qword ptr [rbp - 0x38]
         mov rsi, qword ptr [rbp - 0x30]
         mov rdx, qword ptr [rbp - 0x28]
         mov rcx, qword ptr [rbp - 0x20]
         mov r8, qword ptr [rbp - 0x18]
         mov r9, qword ptr [rbp - 0x10]
         movups xmm0, xmmword ptr [rbp - 0xc0]
         movups xmm1, xmmword ptr [rbp - 0xb0]
         movups xmm2, xmmword ptr [rbp - 0xa0]
         movups xmm3, xmmword ptr [rbp - 0x90]
         movups xmm4, xmmword ptr [rbp - 0x80]
         movups xmm5, xmmword ptr [rbp - 0x70]
         movups xmm6, xmmword ptr [rbp - 0x60]
         movups xmm7, xmmword ptr [rbp - 0x50]"
    };
}

/// Counts in the thread's cells, whose address is in `rax`, and goes on to the real function of the
/// thunk in `r11`; past the limit to `slow`.
macro_rules! count_and_go {
    () => {
        "add rax, qword ptr [r11 + 16]
         mov r10, qword ptr [rax]
         inc r10
         mov qword ptr [rax], r10
         cmp r10, qword ptr [rax + 8]
         ja {slow}
         jmp qword ptr [r11 + 8]"
    };
}

/// Saves the arguments of a look-up; keeps the stack aligned for a call.
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

/// Puts the arguments of a look-up back.
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

/// Bytes of one stub of the pool.
const STUB_SIZE: usize = 16;
/// Bytes of one stub that counts.
const COUNTING_STUB_SIZE: usize = 64;

/// How many stack words of arguments an intercepted call that returns to us gets copied.
///
/// `cudaLaunchKernel` has two (its `dim3`s take four registers); eight leave room.
const STACK_WORDS: usize = 8;

/// What [`slow`] saved of a call.
#[repr(C)]
pub struct Frame {
    /// The thunk that the call came through.
    pub thunk: *const Thunk,
    /// The integer arguments that came in registers.
    pub args: [usize; 6],
    /// When the call went on to the real function, if it is recorded; else 0.
    pub since: Cell<u64>,
    frame_pointer: usize,
    /// Where the call returns to: in its caller.
    pub return_address: usize,
}

impl Frame {
    /// The argument in word `index` of those that are no floating-point numbers.
    pub fn word(&self, index: usize) -> usize {
        let on_stack = |behind: usize| {
            let first = (&raw const self.return_address).wrapping_add(1);
            // SAFETY: the caller's arguments lie above the return address, or its own frame does.
            unsafe { first.add(behind).read_volatile() }
        };
        let register = self.args.get(index).copied();
        register.unwrap_or_else(|| on_stack(index - self.args.len()))
    }

    /// Whether the call comes from within `outer`, if there is any.
    ///
    /// An exception or `longjmp` that leaves a call leaves its mark, too. The return address that it
    /// marks is soon overwritten by other calls, and one from the same place is no deeper than it was.
    pub fn is_within(&self, outer: Outer) -> bool {
        let mark = core::ptr::with_exposed_provenance::<usize>(outer.place);
        // SAFETY: a mark above us on the stack is readable.
        (&raw const self.return_address).addr() < outer.place
            && unsafe { mark.read_volatile() } == outer.return_address
    }
}

global_asm!(
    // The pool: stub i loads the address of thunk i and jumps to its handler.
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
    "jmp qword ptr [r11]",
    ".set tllmprof_i, tllmprof_i + {size}",
    ".endr",
    ".cfi_endproc",
    ".size tllmprof_stubs, . - tllmprof_stubs",
    // The same for functions of the driver, with what `count` does in place: a jump less.
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
    ".text",
    count = const THUNK_COUNT,
    size = const THUNK_SIZE,
    thunks = sym super::thunk::THUNKS,
    handler = sym count,
    slow = sym slow,
    cells = const Block::CELLS,
    outer = const Block::OUTER,
);

// SAFETY: the symbols are defined above, with these sizes.
unsafe extern "C" {
    static tllmprof_stubs: [u8; STUB_SIZE * THUNK_COUNT];
    static tllmprof_counting_stubs: [u8; COUNTING_STUB_SIZE * THUNK_COUNT];
    static tllmprof_counting_stubs_end: u8;
}

/// The address that callers get for thunk `index`: a stub that goes to its handler.
pub fn stub(index: usize) -> *mut c_void {
    let pool = (&raw const tllmprof_stubs).cast::<u8>();
    // SAFETY: the symbol is the start of THUNK_COUNT stubs of STUB_SIZE bytes; index is below it.
    unsafe { pool.add(index * STUB_SIZE).cast_mut().cast() }
}

/// The address that callers get for thunk `index` whose handler is [`count`] for good.
pub fn counting_stub(index: usize) -> *mut c_void {
    let pool = (&raw const tllmprof_counting_stubs).cast::<u8>();
    // The assembler chooses how long its jumps are; should they not fit, the handler serves.
    let length = (&raw const tllmprof_counting_stubs_end).addr() - pool.addr();
    if length != COUNTING_STUB_SIZE * THUNK_COUNT {
        return stub(index);
    }
    // SAFETY: as above, with stubs of COUNTING_STUB_SIZE bytes.
    unsafe { pool.add(index * COUNTING_STUB_SIZE).cast_mut().cast() }
}

/// Handler: counts the call in the thread's cell, then jumps to the real function.
///
/// A count past the cell's limit, a thread without cells, or a call that may be nested in another
/// go the slow way.
#[unsafe(naked)]
pub unsafe extern "C" fn count() {
    naked_asm!(
        "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
        "cmp rsp, qword ptr fs:[r10 + {outer}]",
        "jb 2f",
        "3:",
        "mov rax, qword ptr fs:[r10 + {cells}]",
        "test rax, rax",
        "jz {slow}",
        count_and_go!(),
        // Below the mark of an outer call: nested in it, unless that was left by longjmp, in which
        // case its return address no longer lies there.
        "2:",
        "mov rax, qword ptr fs:[r10 + {outer}]",
        "mov rax, qword ptr [rax]",
        "cmp rax, qword ptr fs:[r10 + {outer_return}]",
        "jne 3b",
        "jmp qword ptr [r11 + 8]",
        slow = sym slow,
        cells = const Block::CELLS,
        outer = const Block::OUTER,
        outer_return = const Block::OUTER_RETURN,
    )
}

/// A handler that notes the call in the thread's trail, as [`Trail`] wants it, and goes on to
/// [`count`]. The token is a register or a constant; `counts`: the trail's counter of the launches.
macro_rules! noting {
    ($both:ident, $name:ident, $recorded:ident, $($how:tt)*) => {
        noting!(@ $name, count, $($how)*);
        noting!(@ $recorded, record, $($how)*);
        pub const $both: Noting = [$name, $recorded];
    };
    (@ $name:ident, $go:ident, $token:literal $(, counts $counter:ident)? $(, token = $value:expr)?) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
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
                go = sym $go,
                trail = const Block::TRAIL,
            )
        }
    };
}
noting!(NOTE_FIRST_ARGUMENT, note_first, record_first, "rdi", counts LAUNCHES);
noting!(NOTE_SECOND_ARGUMENT, note_second, record_second, "rsi", counts LAUNCHES);
noting!(NOTE_GRAPH, note_graph, record_graph, "{token}", counts GRAPHS, token = Trail::GRAPH);
noting!(
    NOTE_COPY_TO_HOST,
    note_to_host,
    record_to_host,
    "{token}",
    token = Trail::COPY_TO_HOST
);
noting!(
    NOTE_COPY_TO_DEVICE,
    note_to_device,
    record_to_device,
    "{token}",
    token = Trail::COPY_TO_DEVICE
);
noting!(
    NOTE_STREAM_WAIT,
    note_stream,
    record_stream,
    "{token}",
    token = Trail::wait(Wait::Stream)
);
noting!(
    NOTE_EVENT_WAIT,
    note_event,
    record_event,
    "{token}",
    token = Trail::wait(Wait::Event)
);
noting!(
    NOTE_CONTEXT_WAIT,
    note_context,
    record_context,
    "{token}",
    token = Trail::wait(Wait::Context)
);
noting!(
    NOTE_BLOCKING_COPY,
    note_blocking,
    record_blocking,
    "{token}",
    token = Trail::wait(Wait::CopyToHost)
);

/// The handler that notes a call, and the one that records it as well.
pub type Noting = [unsafe extern "C" fn(); 2];

/// Handler: as [`count`], and has the call recorded, from the moment when it goes on to the real
/// function to when that returns, by [`super::recorded::returned`]. What [`slow`] sees it records.
/// None of the table's functions takes a floating-point number: those registers may be used meanwhile.
///
/// A call that is nested in another of the program's is recorded, though not counted; one that our
/// own code makes is not. The frame is as in [`slow`].
#[unsafe(naked)]
pub unsafe extern "C" fn record() {
    naked_asm!(
        ".cfi_startproc",
        "mov r10, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
        "cmp rsp, qword ptr fs:[r10 + {outer}]",
        "jb 2f",
        "3:",
        "mov rax, qword ptr fs:[r10 + {cells}]",
        "test rax, rax",
        "jz {slow}",
        "cmp byte ptr [rip + {is_counter}], 0",
        "je {slow_counted}",
        "add rax, qword ptr [r11 + 16]",
        "mov r10, qword ptr [rax]",
        "inc r10",
        "mov qword ptr [rax], r10",
        "cmp r10, qword ptr [rax + 8]",
        "ja {slow}",
        "4:",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_remember_state",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 0x40 + 8 * {words}",
        "mov qword ptr [rbp - 0x40], r11",
        "mov qword ptr [rbp - 0x38], rdi",
        "mov qword ptr [rbp - 0x30], rsi",
        "mov qword ptr [rbp - 0x28], rdx",
        "mov qword ptr [rbp - 0x20], rcx",
        ".set tllmprof_word, 0",
        ".rept {words}",
        "mov r10, qword ptr [rbp + 16 + tllmprof_word]",
        "mov qword ptr [rsp + tllmprof_word], r10",
        ".set tllmprof_word, tllmprof_word + 8",
        ".endr",
        "mov qword ptr [rbp - 0x18], r8",
        "mov qword ptr [rbp - 0x10], r9",
        "lea rdi, [rbp - 0x40]",
        "call {entered}",
        "mov r10, rax",
        "mov r11, qword ptr [rbp - 0x40]",
        "mov rdi, qword ptr [rbp - 0x38]",
        "mov rsi, qword ptr [rbp - 0x30]",
        "mov rcx, qword ptr [rbp - 0x20]",
        "mov r8, qword ptr [rbp - 0x18]",
        "mov r9, qword ptr [rbp - 0x10]",
        "rdtsc",
        "shl rdx, 32",
        "or rax, rdx",
        "and rax, -2",
        "or rax, r10",
        "mov qword ptr [rbp - 0x08], rax",
        "mov rdx, qword ptr [rbp - 0x28]",
        "xor eax, eax",
        "call qword ptr [r11 + 8]",
        "lea rdi, [rbp - 0x40]",
        "mov rsi, rax",
        "call {returned}",
        "leave",
        ".cfi_restore_state",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "ret",
        // Below the mark of an outer call, as in `count`.
        ".cfi_def_cfa rsp, 8",
        "2:",
        "mov rax, qword ptr fs:[r10 + {outer}]",
        "mov rax, qword ptr [rax]",
        "cmp rax, qword ptr fs:[r10 + {outer_return}]",
        "jne 3b",
        "test rax, rax",
        "jnz 5f",
        "jmp qword ptr [r11 + 8]",
        "5:",
        "cmp byte ptr [rip + {is_counter}], 0",
        "jne 4b",
        "jmp {slow}",
        ".cfi_endproc",
        is_counter = sym tllmprof_recorder::IS_COUNTER,
        slow = sym slow,
        slow_counted = sym slow_counted,
        entered = sym super::recorded::entered,
        returned = sym super::recorded::returned,
        words = const STACK_WORDS,
        cells = const Block::CELLS,
        outer = const Block::OUTER,
        outer_return = const Block::OUTER_RETURN,
    )
}

/// Counts the call in the thread's cells, whose address is in `rax`, and goes to [`slow`].
#[unsafe(naked)]
unsafe extern "C" fn slow_counted() {
    naked_asm!(
        "add rax, qword ptr [r11 + 16]",
        "inc qword ptr [rax]",
        "jmp {slow}",
        slow = sym slow,
    )
}

/// Handler: asks [`super::dispatch::before`], then either jumps to the real function or calls it
/// and asks [`super::dispatch::after`].
///
/// Saves what may carry arguments: six integer and eight vector registers. The frame has call
/// frame information and no personality, so that an exception passes through it.
#[unsafe(naked)]
pub unsafe extern "C" fn slow() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 0xd0",
        save!(),
        "lea rdi, [rbp - 0x40]",
        "call {before}",
        restore!(),
        "test eax, eax",
        "jnz 2f",
        "mov r11, qword ptr [rbp - 0x40]",
        "leave",
        ".cfi_remember_state",
        ".cfi_def_cfa rsp, 8",
        "jmp qword ptr [r11 + 8]",
        ".cfi_restore_state",
        "2:",
        "sub rsp, 8 * {words}",
        ".set tllmprof_word, 0",
        ".rept {words}",
        "mov r10, qword ptr [rbp + 16 + tllmprof_word]",
        "mov qword ptr [rsp + tllmprof_word], r10",
        ".set tllmprof_word, tllmprof_word + 8",
        ".endr",
        "mov r11, qword ptr [rbp - 0x40]",
        "xor eax, eax",
        "call qword ptr [r11 + 8]",
        "mov qword ptr [rbp - 0xc8], rax",
        "lea rdi, [rbp - 0x40]",
        "mov rsi, rax",
        "call {after}",
        "mov rax, qword ptr [rbp - 0xc8]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        before = sym super::dispatch::before,
        after = sym super::dispatch::after,
        words = const STACK_WORDS,
    )
}

/// The stub of an exported function: looks its caller up in the first binding of the
/// [`super::export::Export`].
#[doc(hidden)]
#[macro_export]
macro_rules! __export_stub {
    ($export:ident, $exported:path) => {
        core::arch::naked_asm!(
            "lea r11, [rip + {export}]",
            "mov rax, qword ptr [rsp]",
            "mov r10, qword ptr [r11]",
            "sub rax, qword ptr [r10]",
            "cmp rax, qword ptr [r10 + 8]",
            "jae {exported}",
            "mov r11, qword ptr [r10 + 16]",
            "jmp qword ptr [r11]",
            export = sym $export,
            exported = sym $exported,
        )
    };
}

/// Where an exported function arrives, with its [`super::export::Export`] in `r11`.
///
/// The caller's module decides which real function it means. Four modules are remembered for each
/// export, of which its stub has looked at the first; another goes to [`super::export::bind`].
#[unsafe(naked)]
pub unsafe extern "C" fn exported() {
    naked_asm!(
        ".irp slot, 8, 16, 24",
        "mov rax, qword ptr [rsp]",
        "mov r10, qword ptr [r11 + \\slot]",
        "sub rax, qword ptr [r10]",
        "cmp rax, qword ptr [r10 + 8]",
        "jb 2f",
        ".endr",
        "jmp {bind}",
        "2:",
        "mov r11, qword ptr [r10 + 16]",
        "jmp qword ptr [r11]",
        bind = sym bind,
    )
}

/// Asks [`super::export::bind`] for the thunk of this caller and goes on to it.
#[unsafe(naked)]
unsafe extern "C" fn bind() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 0xc0",
        save!(),
        "mov rdi, r11",
        "mov rsi, qword ptr [rbp + 8]",
        "call {bind}",
        "mov r11, rax",
        restore!(),
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp qword ptr [r11]",
        ".cfi_endproc",
        bind = sym super::export::bind,
    )
}

/// Handler of a function that is nowhere to be found: says `not initialised`, which is error 3 of
/// both the driver and the runtime.
#[unsafe(naked)]
pub unsafe extern "C" fn missing() {
    naked_asm!("mov eax, 3", "ret")
}

/// A look-up function that examines its return address to learn who asks: whatever is not about
/// CUDA is passed on by a jump that leaves that address in place.
macro_rules! door {
    ($name:ident, caller in $caller:literal, version: $version:literal, $lookup:path, $real:path) => {
        /// What the exported look-up function of this name jumps to.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "test rsi, rsi",
                "jz 2f",
                "cmp byte ptr [rip + {are_named}], 0",
                "jne 5f",
                "6:",
                "cmp byte ptr [rsi], 0x63", // c
                "jne 2f",
                "cmp byte ptr [rsi + 1], 0x75", // u
                "jne 2f",
                push!(),
                "call {wanted}",
                pop!(),
                "test al, al", // a bool: the rest of eax may hold anything
                "jz 2f",
                concat!("mov ", $caller, ", qword ptr [rsp]"),
                "jmp {lookup}",
                "2:",
                "mov rax, qword ptr [rip + {real}]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                // Called before our constructor ran.
                "3:",
                push!(),
                "call {find}",
                pop!(),
                "mov rax, qword ptr [rip + {real}]",
                "test rax, rax",
                "jz 4f",
                "jmp rax",
                // An old glibc without libdl: nothing can be looked up.
                "4:",
                "ret",
                // A rule names functions: this may be one of them, or one of a new module.
                "5:",
                push!(),
                $version,
                "mov rcx, qword ptr [rsp + 24]",
                "call {named}",
                pop!(),
                "test rax, rax",
                "jz 6b",
                "ret",
                ".cfi_endproc",
                wanted = sym super::dlsym::wanted,
                lookup = sym $lookup,
                find = sym super::dlsym::find_real,
                are_named = sym tllmprof_platform::modules::ARE_WATCHED,
                named = sym super::named::lookup,
                real = sym $real,
            )
        }
    };
}
door!(dlsym_door, caller in "rdx", version: "xor edx, edx", super::dlsym::lookup, super::dlsym::REAL_DLSYM);
door!(dlvsym_door, caller in "rcx", version: "nop", super::dlsym::lookup_version, super::dlsym::REAL_DLVSYM);
