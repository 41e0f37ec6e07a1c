//! The stub (the code at which a stopped thread continues) and the stub's data.
//!
//! The stub is placed after the code of a module, in memory that is not writable. So the stub only reads its
//! [`Constants`], which follow the code. It writes only into its region: memory that it first maps, at an address
//! that the command has chosen. Until the region exists, the stub uses only registers and changes no flags. It
//! never uses the thread's stack.

use core::arch::global_asm;

/// Size of the region, the memory that the stub (the injected code) maps for its data, in bytes.
pub(crate) const REGION: u64 = 256 << 10;
/// Offset, in the region (the data memory of the injected stub), of the processor state that the stub saves with XSAVE.
/// This area is 64-byte-aligned and zero at first, as XSAVE requires.
const STATE: u64 = 0;
/// Maximum size of the processor state, in bytes. This is also the offset of the data that follow it in the region (the
/// data memory of the injected stub).
pub(crate) const MAX_STATE: u64 = 64 << 10;
/// Offset, in the region (the data memory of the injected stub), of the signal mask of the interrupted thread.
const MASK: u64 = MAX_STATE;
/// Offset, in the region (the data memory of the injected stub), of the `pthread_t` of the thread that the stub
/// creates.
const THREAD: u64 = MAX_STATE + 8;
/// Offset, in the region (the data memory of the injected stub), of the stub's progress: 0 until the stub's call of
/// `pthread_create` has returned, then [`CREATED`], even if the call failed (see [`ERROR`]).
pub(crate) const STUB: u64 = MAX_STATE + 16;
/// Offset, in the region (the data memory of the injected stub), of the return value of the stub's call of
/// `pthread_create`.
pub(crate) const ERROR: u64 = MAX_STATE + 24;
/// Offset, in the region (the data memory of the injected stub), of the progress of the thread that the stub creates: 0
/// at first, then [`FAILED`] or [`ANSWERED`].
pub(crate) const STARTED: u64 = MAX_STATE + 32;
/// Offset, in the region (the data memory of the injected stub), of the return value of the library's
/// `tllmprof_attach`.
pub(crate) const ANSWER: u64 = MAX_STATE + 40;
/// Offset, in the region (the data memory of the injected stub), of the loader's error message, which ends with a zero
/// byte.
pub(crate) const TEXT: u64 = MAX_STATE + 48;
pub(crate) const MAX_TEXT: u64 = 512;
/// Offset, in the region (the data memory of the injected stub), of the result of making a file in memory for the
/// library: the file's descriptor plus 1, or a negative error number. The new thread makes the file.
pub(crate) const FILE: u64 = TEXT + MAX_TEXT;
/// Offset, in the region (the data memory of the injected stub), of a word that the command sets once it has tried to
/// write the library into the file in memory: to [`WRITTEN`], or to [`GIVEN_UP`] if it has failed.
pub(crate) const READY: u64 = FILE + 8;
/// Offset, in the region (the data memory of the injected stub), of the path of the file in memory. The command writes
/// the path.
pub(crate) const PATH: u64 = FILE + 16;
pub(crate) const MAX_PATH: u64 = 64;
/// Offset, in the region (the data memory of the injected stub), of two `struct stat`. The first one describes the file
/// in memory when it was made. The second one describes the file that is open under the same descriptor when the stub
/// is about to close the descriptor.
const STATUS: u64 = PATH + MAX_PATH;
const STATUS_SIZE: u64 = 144;

/// Values of the words at [`STUB`] and [`STARTED`]. They are unusual, so that unrelated data at these addresses is
/// not mistaken for them.
pub(crate) const CREATED: u64 = 0x5471_0001;
pub(crate) const FAILED: u64 = 0x5471_0002;
pub(crate) const ANSWERED: u64 = 0x5471_0003;
/// Values of the word at [`READY`]: the command has written the library into the file in memory, or has given up.
pub(crate) const WRITTEN: u64 = 1;
pub(crate) const GIVEN_UP: u64 = 2;
/// Time, in milliseconds, after which the new thread gives up waiting for the command to write the library into the
/// file in memory. The thread counts pauses of 1 ms, so it may wait longer.
const WRITING_MS: u64 = 10_000;

/// The name that the stub (the injected code) gives, in the loader's list of libraries, to a library that was loaded
/// from a file in memory. This name is not a path that can be opened.
const RENAMED: &str = "/memfd:libtllmprof.so";
/// The kernel's name for a file in memory that contains the library, as `/proc/PID/maps` shows it.
pub(crate) const MADE: &str = "/memfd:libtllmprof.so (deleted)";

/// The constants that the stub (the injected code) reads, in the order in which they follow its code.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Constants {
    pub region: u64,
    /// The address of the region (the stub's data memory), negated. The stub adds it to a value to find out if the
    /// value is the region's address: the sum is then 0. Unlike `cmp`, this comparison changes no flags.
    pub negated: u64,
    pub pthread_create: u64,
    pub pthread_detach: u64,
    pub errno_location: u64,
    pub dlopen: u64,
    pub dlsym: u64,
    pub dlerror: u64,
    /// Address of the library's path. It is 0 if the library has no path in this process. Then the new thread first
    /// makes a file in memory, whose path the command stores at [`PATH`], unless the library is already loaded.
    pub path: u64,
    /// Address of the library's function `tllmprof_attach` if the library is already loaded, otherwise 0.
    pub entry: u64,
    pub variables: u64,
    // Values of the registers with which the interrupted thread continues its program.
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub flags: u64,
    pub rip: u64,
}

const COUNT: usize = size_of::<Constants>() / 8;

impl Constants {
    fn words(&self) -> [u64; COUNT] {
        // SAFETY: the structure consists of `COUNT` words without padding.
        unsafe { core::mem::transmute_copy(self) }
    }
}

macro_rules! constant {
    ($field:ident) => {
        core::mem::offset_of!(Constants, $field)
    };
}

global_asm!(
    ".pushsection .rodata.tllmprof_stub,\"a\",@progbits",
    ".balign 16",
    "tllmprof_stub_start:",
    // mmap(region, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
    "mov eax, 9",
    "mov rdi, qword ptr [rip + 99f + {region}]",
    "mov esi, {REGION}",
    "mov edx, 3",
    "mov r10d, 0x100022",
    "mov r8, -1",
    "mov r9d, 0",
    "syscall",
    // Compare rax with the address of the region (the stub's data memory). The comparison uses lea and jrcxz, because
    // flags must not change before they have been saved.
    "mov rcx, qword ptr [rip + 99f + {negated}]",
    "lea rcx, [rcx + rax]",
    "jrcxz 2f",
    "jmp 5f",
    "2:",
    "mov rbx, qword ptr [rip + 99f + {region}]",
    "lea rsp, [rbx + {REGION}]",
    "mov eax, -1",
    "mov edx, -1",
    "xsave64 [rbx + {STATE}]",
    "push 2",
    "popfq",
    "fninit",
    "ldmxcsr dword ptr [rip + 7f]",
    // rt_sigprocmask(SIG_BLOCK, …): the new thread inherits the signal mask, and must not run the program's signal
    // handlers.
    "mov eax, 14",
    "xor edi, edi",
    "lea rsi, [rip + 6f]",
    "lea rdx, [rbx + {MASK}]",
    "mov r10d, 8",
    "syscall",
    "call qword ptr [rip + 99f + {errno_location}]",
    "mov r12, rax",
    "mov r13d, dword ptr [rax]",
    "lea rdi, [rbx + {THREAD}]",
    "xor esi, esi",
    "lea rdx, [rip + 10f]",
    "mov rcx, rbx",
    "call qword ptr [rip + 99f + {pthread_create}]",
    "mov dword ptr [r12], r13d",
    "mov eax, eax",
    "mov qword ptr [rbx + {ERROR}], rax",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rbx + {MASK}]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov qword ptr [rbx + {STUB}], {CREATED}",
    "mov eax, -1",
    "mov edx, -1",
    "xrstor64 [rbx + {STATE}]",
    "push qword ptr [rip + 99f + {flags}]",
    "popfq",
    "5:",
    "mov rax, qword ptr [rip + 99f + {rax}]",
    "mov rbx, qword ptr [rip + 99f + {rbx}]",
    "mov rcx, qword ptr [rip + 99f + {rcx}]",
    "mov rdx, qword ptr [rip + 99f + {rdx}]",
    "mov rsi, qword ptr [rip + 99f + {rsi}]",
    "mov rdi, qword ptr [rip + 99f + {rdi}]",
    "mov rbp, qword ptr [rip + 99f + {rbp}]",
    "mov r8, qword ptr [rip + 99f + {r8}]",
    "mov r9, qword ptr [rip + 99f + {r9}]",
    "mov r10, qword ptr [rip + 99f + {r10}]",
    "mov r11, qword ptr [rip + 99f + {r11}]",
    "mov r12, qword ptr [rip + 99f + {r12}]",
    "mov r13, qword ptr [rip + 99f + {r13}]",
    "mov r14, qword ptr [rip + 99f + {r14}]",
    "mov r15, qword ptr [rip + 99f + {r15}]",
    "mov rsp, qword ptr [rip + 99f + {rsp}]",
    "jmp qword ptr [rip + 99f + {rip}]",
    // The thread that the stub has created begins at this label. Its argument, in rdi, is the address of the region
    // (the stub's data memory).
    "10:",
    "push rbx",
    "push r12",
    "push r13",
    "mov rbx, rdi",
    // r12d holds the descriptor of the file in memory; -1 if there is none.
    "mov r12d, -1",
    "mov rdi, qword ptr fs:[0x10]",
    "call qword ptr [rip + 99f + {pthread_detach}]",
    // prctl(PR_SET_NAME, …): by this name of the thread, the library recognizes that it is being attached to a running
    // process.
    "mov eax, 157",
    "mov edi, 15",
    "lea rsi, [rip + 12f]",
    "syscall",
    "mov rax, qword ptr [rip + 99f + {entry}]",
    "test rax, rax",
    "jnz 28f",
    "mov rdi, qword ptr [rip + 99f + {path}]",
    "test rdi, rdi",
    "jnz 26f",
    // memfd_create("libtllmprof.so", MFD_CLOEXEC)
    "mov eax, 319",
    "lea rdi, [rip + 9f + 7]",
    "mov esi, 1",
    "syscall",
    "test eax, eax",
    "js 23f",
    // fcntl(…, F_DUPFD_CLOEXEC, 64): moves the descriptor to a high number, because the program may rely on the lowest
    // free numbers for the files that it opens itself.
    "mov r12d, eax",
    "mov edi, eax",
    "mov eax, 72",
    "mov esi, 1030",
    "mov edx, 64",
    "syscall",
    "test eax, eax",
    "js 22f",
    "xchg r12d, eax",
    "mov edi, eax",
    "mov eax, 3",
    "syscall",
    "22:",
    // fstat: stores the identity (device and inode) of the created file. Before the stub closes the descriptor, it
    // compares this identity with that of the file that is then open under the descriptor.
    "mov edi, r12d",
    "lea rsi, [rbx + {STATUS}]",
    "mov eax, 5",
    "syscall",
    "lea eax, [r12 + 1]",
    "23:",
    "movsxd rax, eax",
    "mov qword ptr [rbx + {FILE}], rax",
    "test rax, rax",
    "js 16f",
    "mov r13d, {WRITING_MS}",
    "24:",
    "mov rax, qword ptr [rbx + {READY}]",
    "test rax, rax",
    "jnz 25f",
    "dec r13d",
    "jz 16f",
    // nanosleep, for 1 ms, until the command has written the library
    "mov eax, 35",
    "lea rdi, [rip + 8f]",
    "xor esi, esi",
    "syscall",
    "jmp 24b",
    "25:",
    "cmp rax, {WRITTEN}",
    "jne 16f",
    "lea rdi, [rbx + {PATH}]",
    "26:",
    // Flags of dlopen: RTLD_NOW | RTLD_NODELETE
    "mov esi, 0x1002",
    "call qword ptr [rip + 99f + {dlopen}]",
    "mov r13, rax",
    "test rax, rax",
    "jz 14f",
    // Replaces the loader's name for the library (link_map.l_name), because the name contains the number of the file's
    // descriptor. Once the descriptor is closed, this number may lead to another file.
    "test r12d, r12d",
    "js 27f",
    "mov rdi, qword ptr [rax + 8]",
    "mov rax, qword ptr [rip + 18f]",
    "cmp rax, qword ptr [rdi]",
    "jne 27f",
    "lea rsi, [rip + 9f]",
    "mov ecx, {RENAMED}",
    "rep movsb",
    "27:",
    "mov rdi, r13",
    "lea rsi, [rip + 13f]",
    "call qword ptr [rip + 99f + {dlsym}]",
    "test rax, rax",
    "jz 14f",
    "mov r13, rax",
    "call 30f",
    "mov rax, r13",
    "28:",
    "mov rdi, qword ptr [rip + 99f + {variables}]",
    "call rax",
    "mov eax, eax",
    "mov qword ptr [rbx + {ANSWER}], rax",
    "mov qword ptr [rbx + {STARTED}], {ANSWERED}",
    "jmp 17f",
    "14:",
    "call qword ptr [rip + 99f + {dlerror}]",
    "test rax, rax",
    "jz 16f",
    "mov rsi, rax",
    "lea rdi, [rbx + {TEXT}]",
    "mov ecx, {MAX_TEXT} - 1",
    "15:",
    "lodsb",
    "test al, al",
    "jz 16f",
    "stosb",
    "dec ecx",
    "jnz 15b",
    "16:",
    "call 30f",
    "mov qword ptr [rbx + {STARTED}], {FAILED}",
    "17:",
    "xor eax, eax",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    // Closes the file's descriptor, unless the program has closed it and opened another file with the same
    // number.
    "30:",
    "test r12d, r12d",
    "js 31f",
    "mov edi, r12d",
    "lea rsi, [rbx + {STATUS} + {STATUS_SIZE}]",
    "mov eax, 5",
    "syscall",
    "test eax, eax",
    "jnz 31f",
    // Compares the device and the inode of two files: the file that was created, and the file that is open under its
    // descriptor now.
    "mov rax, qword ptr [rbx + {STATUS}]",
    "cmp rax, qword ptr [rbx + {STATUS} + {STATUS_SIZE}]",
    "jne 31f",
    "mov rax, qword ptr [rbx + {STATUS} + 8]",
    "cmp rax, qword ptr [rbx + {STATUS} + {STATUS_SIZE} + 8]",
    "jne 31f",
    "mov edi, r12d",
    "mov eax, 3",
    "syscall",
    "31:",
    "ret",
    "6:",
    // The set of all signals except the two that the C library sends to its threads.
    ".quad 0xfffffffe7fffffff",
    "7:",
    ".long 0x1f80",
    "8:",
    ".quad 0, 1000000",
    "9:",
    ".asciz \"/memfd:libtllmprof.so\"",
    "18:",
    ".ascii \"/proc/th\"",
    "12:",
    ".asciz \"tllmprof-attach\"",
    "13:",
    ".asciz \"tllmprof_attach\"",
    ".balign 8",
    "99:",
    "tllmprof_stub_end:",
    ".popsection",
    REGION = const REGION,
    STATE = const STATE,
    MASK = const MASK,
    THREAD = const THREAD,
    STUB = const STUB,
    ERROR = const ERROR,
    STARTED = const STARTED,
    ANSWER = const ANSWER,
    TEXT = const TEXT,
    MAX_TEXT = const MAX_TEXT,
    FILE = const FILE,
    READY = const READY,
    PATH = const PATH,
    STATUS = const STATUS,
    STATUS_SIZE = const STATUS_SIZE,
    WRITTEN = const WRITTEN,
    WRITING_MS = const WRITING_MS,
    RENAMED = const RENAMED.len() + 1,
    CREATED = const CREATED,
    FAILED = const FAILED,
    ANSWERED = const ANSWERED,
    region = const constant!(region),
    negated = const constant!(negated),
    pthread_create = const constant!(pthread_create),
    pthread_detach = const constant!(pthread_detach),
    errno_location = const constant!(errno_location),
    dlopen = const constant!(dlopen),
    dlsym = const constant!(dlsym),
    dlerror = const constant!(dlerror),
    path = const constant!(path),
    entry = const constant!(entry),
    variables = const constant!(variables),
    rax = const constant!(rax),
    rbx = const constant!(rbx),
    rcx = const constant!(rcx),
    rdx = const constant!(rdx),
    rsi = const constant!(rsi),
    rdi = const constant!(rdi),
    rbp = const constant!(rbp),
    rsp = const constant!(rsp),
    r8 = const constant!(r8),
    r9 = const constant!(r9),
    r10 = const constant!(r10),
    r11 = const constant!(r11),
    r12 = const constant!(r12),
    r13 = const constant!(r13),
    r14 = const constant!(r14),
    r15 = const constant!(r15),
    flags = const constant!(flags),
    rip = const constant!(rip),
);

// SAFETY: the assembly above defines both symbols, around bytes that are only read.
unsafe extern "C" {
    static tllmprof_stub_start: u8;
    static tllmprof_stub_end: u8;
}

/// Returns the instructions of the stub (the injected code). They can be placed at any address.
fn code() -> &'static [u8] {
    let (start, end) = (&raw const tllmprof_stub_start, &raw const tllmprof_stub_end);
    // SAFETY: the two symbols bound constant bytes that the assembly above has placed in one section.
    unsafe { core::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// Returns the size of the injected stub, that is, of its code and its constants together, in bytes.
pub(crate) fn size() -> usize {
    code().len() + size_of::<Constants>()
}

/// Returns the bytes of the injected stub: its code, followed by its constants.
pub(crate) fn assemble(constants: &Constants) -> Vec<u8> {
    let words = constants.words();
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    code().iter().copied().chain(words).collect()
}

/// Returns the size of this processor's XSAVE state, in bytes, for all features that the system has enabled.
/// Returns `None` if there is no XSAVE.
pub(crate) fn state() -> Option<u64> {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    (__cpuid(1).ecx & OSXSAVE != 0).then(|| __cpuid_count(13, 0).ebx.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_name_by_which_it_is_known() {
        let (name, code) = (format!("{RENAMED}\0"), code());
        let mut places = code.windows(name.len());
        assert!(places.any(|place| place == name.as_bytes()));
        assert!(MADE.starts_with(RENAMED));
        // The stub overwrites this path in place with the name `RENAMED`, so the path must be at least as long as that
        // name.
        assert!("/proc/thread-self/fd/0".len() >= RENAMED.len());
    }

    #[test]
    fn a_stub_and_its_texts_take_what_messages_speak_of() {
        let texts = 200;
        assert!(size() + texts <= 1536, "{}", size());
    }
}
