//! Helpers for the unit tests of this crate: tests that run in a separate process, functions to call, and simulated
//! calls.

use core::any::type_name;
use core::ffi::c_void;
use core::mem::transmute;
use core::ops::Deref;
use core::sync::atomic::{AtomicI32, Ordering};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tllmprof_platform::ids;
use tllmprof_record::contents::Contents;
use tllmprof_session::SessionFacts;

/// Environment variable with the name of the test to run, in a process that [`alone`] has started.
const ALONE: &str = "TLLMPROF_TEST_ALONE";

/// Returns the program that Cargo is configured to use for AArch64 tests on a computer with another processor: the
/// program that builds the tests if `what` is `LINKER`, or the one that runs them if `what` is `RUNNER`. `None` if
/// there is none, or if the tests are not for AArch64.
fn cross(what: &str) -> Option<String> {
    let variable = format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{what}");
    cfg!(target_arch = "aarch64").then(|| std::env::var(variable).ok())?
}

/// Runs `act`, the closure of a test, in a separate process that has only `variables` of the library's environment
/// variables. A separate process is needed because the library makes many decisions once per process, and counts all
/// calls of a process together. Returns the standard error of that process. In that process itself, returns `None`.
///
/// # Panics
/// Panics if the test fails in the separate process.
pub(crate) fn alone<F: FnOnce()>(variables: &[(&str, &str)], act: F) -> Option<String> {
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    let test = path.split_once("::").unwrap().1;
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        act();
        return None;
    }
    let runner = cross("RUNNER").unwrap_or_default();
    let program = std::env::current_exe().unwrap();
    let mut words = runner
        .split_whitespace()
        .map(OsStr::new)
        .chain([program.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    for (name, _) in std::env::vars_os() {
        let is_ours = |name: &str| {
            ["TLLM", "NVTX_", "ENABLE_"]
                .iter()
                .any(|of| name.starts_with(of))
        };
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    let ran = command
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, test)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let [out, err] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        ran.status.success() && out.contains("1 passed"),
        "{test} alone: {}\n{out}\n{err}",
        ran.status
    );
    Some(err.into_owned())
}

/// Runs `act` with a window (a recorded interval) open, and returns the contents of the record. Must run in a separate
/// process ([`alone`]) with `TLLMPROF_TRACE` set.
pub(crate) fn recorded(act: impl FnOnce()) -> Contents {
    let settings = tllmprof_session::activity::settings().unwrap();
    tllmprof_recorder::start(settings);
    let facts = SessionFacts {
        rank: None,
        python: None,
        rule: &"",
        why: None,
        engine: None,
        is_span: false,
    };
    tllmprof_recorder::begin(settings, &facts);
    tllmprof_recorder::window_opens(0, false);
    assert!(tllmprof_recorder::is_recording());
    act();
    tllmprof_recorder::window_closes(1);
    let path = std::env::var_os("TLLMPROF_TRACE").unwrap();
    Contents::read(&File::open(path).unwrap())
}

/// The path of a file in a temporary folder, which is removed on drop.
pub(crate) struct Temporary {
    path: PathBuf,
    _folder: TempDir,
}

impl Temporary {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            path: folder.path().join(name),
            _folder: folder,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Deref for Temporary {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

/// Returns the path for a test's record, to be set as `TLLMPROF_TRACE`.
pub(crate) fn record_of(test: &str) -> Temporary {
    Temporary::new(&format!("{test}.tllmprof"))
}

/// Builds a shared library with this soname from `source` (C), with the linker that built the test.
pub(crate) fn library(soname: &str, source: &str) -> Temporary {
    let library = Temporary::new(soname);
    let code = library.with_extension("c");
    std::fs::write(&code, source).unwrap();
    let mut command = Command::new(cross("LINKER").unwrap_or_else(|| "cc".to_owned()));
    command
        .args(["-shared", "-fPIC", "-o"])
        .args([&*library, &*code]);
    let made = command.arg(format!("-Wl,-soname,{soname}")).status();
    assert!(made.unwrap().success(), "cc cannot make {soname}");
    library
}

/// Loads the library at `path` into this process, and returns its handle. Panics if the library cannot be loaded.
pub(crate) fn open(path: &Path) -> *mut c_void {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a test built the library, which has no constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{}", path.display());
    handle
}

/// Returns an address in a module other than the test program, to use as a caller's address.
pub(crate) fn stranger() -> usize {
    libc::getppid as *const () as usize
}

/// The arguments with which a test called [`real`], and the value of `errno` at that call.
#[repr(C)]
#[derive(Default, PartialEq, Debug)]
pub(crate) struct MadeCall {
    words: [usize; 13],
    numbers: [f64; 8],
    errno: i32,
}

type Real = extern "C" fn(
    &mut MadeCall,
    usize,
    usize,
    usize,
    usize,
    usize,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> usize;

tllmprof_platform::lifecycle::global! {
    /// ID of the thread whose next call through an entry point of the library panics; 0 if there is none.
    #[fork(keep = "tests that fork ask for none")]
    static PANICS: AtomicI32 = AtomicI32::new(0);
}

/// Makes the calling thread's next call through an entry point of the library panic.
pub(crate) fn panic_next() {
    PANICS.store(ids::thread(), Ordering::Relaxed);
}

/// Panics if [`panic_next`] was called on this thread. The entry points of the library call this function.
pub(crate) fn panic_if_asked() {
    let asked = PANICS.compare_exchange(ids::thread(), 0, Ordering::Relaxed, Ordering::Relaxed);
    assert!(asked.is_err(), "asked for");
}

/// Stores all of its arguments in `seen` and changes `errno`. Returns its last argument.
pub(crate) extern "C" fn real(
    seen: &mut MadeCall,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    n0: f64,
    n1: f64,
    n2: f64,
    n3: f64,
    n4: f64,
    n5: f64,
    n6: f64,
    n7: f64,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
    k: usize,
    l: usize,
    m: usize,
    result: usize,
) -> usize {
    *seen = MadeCall {
        words: [b, c, d, e, f, g, h, i, j, k, l, m, result],
        numbers: [n0, n1, n2, n3, n4, n5, n6, n7],
        errno: errno(),
    };
    set_errno(libc::ERANGE);
    result
}

pub(crate) fn real_address() -> *mut c_void {
    real as Real as *mut c_void
}

fn errno() -> i32 {
    tllmprof_platform::errno::now()
}

fn set_errno(errno: i32) {
    // SAFETY: `__errno_location` returns the calling thread's own location, which is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Calls [`real`] through `entry`, and checks that the library does not change the call: arguments in registers and on
/// the stack, the result, and `errno` before and after. Floating-point arguments are checked only if `numbers` is true,
/// because not every path through the library preserves them.
pub(crate) fn call_by(entry: *mut c_void, result: usize, numbers: bool) {
    let mut seen = MadeCall::default();
    // SAFETY: the entry leads to `real`, which has this type.
    let entry = unsafe { transmute::<*mut c_void, Real>(entry) };
    set_errno(libc::EDOM);
    let returned = entry(
        &mut seen, 101, 102, 103, 104, 105, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 106, 107, 108,
        109, 110, 111, 112, result,
    );
    assert_eq!((returned, errno()), (result, libc::ERANGE));
    let words = [
        101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, result,
    ];
    assert_eq!((seen.words, seen.errno), (words, libc::EDOM));
    if numbers {
        assert_eq!(seen.numbers, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]);
    }
}

/// Calls code with known register contents, and returns the contents after the call.
#[cfg(target_arch = "x86_64")]
pub(crate) mod registers {
    use core::arch::naked_asm;
    use core::ffi::c_void;

    /// The contents of registers before a call, or after it. The stack pointer and `r11`, which hooks may change, are
    /// left out.
    #[repr(C, align(64))]
    #[derive(Clone, PartialEq, Debug)]
    pub(crate) struct Registers {
        pub vectors: [[u64; 4]; 16],
        /// The registers `rax`, `rbx`, `rcx`, `rdx`, `rsi`, `rdi`, `rbp`, `r8` to `r10`, and `r12`
        /// to `r15`, in this order.
        pub general: [u64; 14],
        /// The two top entries of the x87 stack.
        pub floating: [f64; 2],
    }

    impl Registers {
        pub(crate) fn made() -> Self {
            let number = |index: usize| 0x0101_0101_0101_0101 * (1 + index as u64);
            Self {
                vectors: core::array::from_fn(|index| [number(index); 4]),
                general: core::array::from_fn(|index| number(100 + index)),
                // The values that `call_with` loads onto the x87 stack.
                floating: [core::f64::consts::PI, 1.0],
            }
        }
    }

    /// Calls `entry` with the registers set from `before`, and then stores the registers in `after`. The x87 stack is
    /// not set from `before`: it always holds pi and, below it, 1.
    #[unsafe(naked)]
    unsafe extern "C" fn call_with(entry: *mut c_void, before: &Registers, after: &mut Registers) {
        naked_asm!(
            "push rbx",
            "push rbp",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "push rdi",
            "push rdx",
            "sub rsp, 8",
            "fld1",
            "fldpi",
            ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "vmovdqu ymm\\n, ymmword ptr [rsi + 32 * \\n]",
            ".endr",
            "mov rax, qword ptr [rsi + 512]",
            "mov rbx, qword ptr [rsi + 520]",
            "mov rcx, qword ptr [rsi + 528]",
            "mov rdx, qword ptr [rsi + 536]",
            "mov rdi, qword ptr [rsi + 552]",
            "mov rbp, qword ptr [rsi + 560]",
            "mov r8, qword ptr [rsi + 568]",
            "mov r9, qword ptr [rsi + 576]",
            "mov r10, qword ptr [rsi + 584]",
            "mov r12, qword ptr [rsi + 592]",
            "mov r13, qword ptr [rsi + 600]",
            "mov r14, qword ptr [rsi + 608]",
            "mov r15, qword ptr [rsi + 616]",
            "mov rsi, qword ptr [rsi + 544]",
            "call qword ptr [rsp + 16]",
            "mov qword ptr [rsp], rsi",
            "mov rsi, qword ptr [rsp + 8]",
            ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "vmovdqu ymmword ptr [rsi + 32 * \\n], ymm\\n",
            ".endr",
            "mov qword ptr [rsi + 512], rax",
            "mov qword ptr [rsi + 520], rbx",
            "mov qword ptr [rsi + 528], rcx",
            "mov qword ptr [rsi + 536], rdx",
            "mov qword ptr [rsi + 552], rdi",
            "mov qword ptr [rsi + 560], rbp",
            "mov qword ptr [rsi + 568], r8",
            "mov qword ptr [rsi + 576], r9",
            "mov qword ptr [rsi + 584], r10",
            "mov qword ptr [rsi + 592], r12",
            "mov qword ptr [rsi + 600], r13",
            "mov qword ptr [rsi + 608], r14",
            "mov qword ptr [rsi + 616], r15",
            "mov rax, qword ptr [rsp]",
            "mov qword ptr [rsi + 544], rax",
            "fstp qword ptr [rsi + 624]",
            "fstp qword ptr [rsi + 632]",
            "fninit",
            "vzeroupper",
            "add rsp, 8",
            "pop rdx",
            "pop rdi",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbp",
            "pop rbx",
            "ret",
        )
    }

    /// Calls `entry` with the registers set to [`Registers::made`], and returns their contents after the call.
    pub(crate) fn after(entry: *mut c_void) -> Registers {
        let mut after = Registers::made();
        after.vectors = [[0; 4]; 16];
        // SAFETY: the entry is code that follows the calling convention and reads no memory of its caller.
        unsafe { call_with(entry, &Registers::made(), &mut after) };
        after
    }
}
