//! Hooks `prctl` and `syscall`, by which a program installs a filter for system calls.
//!
//! Programs call `syscall` on fast paths, for example for their locks. So each hook is a comparison and a jump to the
//! function that comes after it, with all arguments and registers unchanged; only the calls that may install a filter
//! are examined. A program that makes the system call by an instruction of its own is not seen.

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::panics::contained;
use tllmprof_platform::{function, lifecycle, resolve};
use tllmprof_session as session;

use crate::system_calls;

lifecycle::global! {
    /// The functions that come after the hooks; until the constructor has found them, our own that make the system
    /// call.
    #[fork(keep = "the child's modules are its parent's")]
    static PRCTL: AtomicPtr<c_void> = AtomicPtr::new(system_calls::prctl as *mut c_void);
    #[fork(keep = "as prctl")]
    static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(system_calls::syscall as *mut c_void);
}

const HOOKS: [(&CStr, &AtomicPtr<c_void>); 2] = [(c"prctl", &PRCTL), (c"syscall", &SYSCALL)];

/// Finds the real functions. For the constructor.
pub fn find_real() {
    for (name, place) in HOOKS {
        // If NVTX or `tllmprof attach` has loaded it, this library comes after libc.
        if let Some(real) = resolve::next(name).or_else(|| resolve::of_c_library(name)) {
            place.store(real, Ordering::Release);
        }
    }
}

/// Returns the names of both, and the functions that they call.
pub fn all() -> impl Iterator<Item = (&'static CStr, *mut c_void)> {
    HOOKS
        .into_iter()
        .map(|(name, place)| (name, place.load(Ordering::Acquire)))
}

/// # Safety
/// As for libc's function of this name.
// SAFETY: the symbol is meant to replace libc's, and jumps to it.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn prctl() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "cmp edi, {set_seccomp}",
        "je {look}",
        "jmp qword ptr [rip + {real}]",
        set_seccomp = const libc::PR_SET_SECCOMP,
        look = sym look_at_prctl,
        real = sym PRCTL,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "hint #34",
        "cmp w0, #{set_seccomp}",
        "b.eq {look}",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        set_seccomp = const libc::PR_SET_SECCOMP,
        look = sym look_at_prctl,
        real = sym PRCTL,
    );
}

/// The bits in which the numbers of the two system calls differ, on x86-64: a number that differs only in these is
/// examined.
#[cfg(target_arch = "x86_64")]
const DIFFERING_BITS: i64 = libc::SYS_seccomp - libc::SYS_prctl;

/// # Safety
/// As for libc's function of this name.
// SAFETY: the symbol is meant to replace libc's, and jumps to it.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "lea r11d, [rdi - {prctl}]",
        "test r11d, {others}",
        "jz {look}",
        "jmp qword ptr [rip + {real}]",
        prctl = const libc::SYS_prctl,
        others = const !DIFFERING_BITS as i32,
        look = sym look_at_syscall,
        real = sym SYSCALL,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "hint #34",
        "cmp w0, #{seccomp}",
        "b.eq {look}",
        "cmp w0, #{prctl}",
        "b.eq {look}",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        prctl = const libc::SYS_prctl,
        seccomp = const libc::SYS_seccomp,
        look = sym look_at_syscall,
        real = sym SYSCALL,
    );
}

/// Examines `prctl(PR_SET_SECCOMP, …)`.
unsafe extern "C" fn look_at_prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    // No panic: our own code is contained.
    type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
    look_at_option(option, second, third);
    // SAFETY: libc's function of this name, with the caller's arguments.
    unsafe {
        function::at::<Prctl>(PRCTL.load(Ordering::Acquire))
            .map_or(-1, |real| real(option, second, third, fourth, fifth))
    }
}

/// Examines `syscall(SYS_seccomp, …)` or `syscall(SYS_prctl, …)`, or another call with a similar number, which may have
/// six arguments.
unsafe extern "C" fn look_at_syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    // No panic: our own code is contained.
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // The kernel's numbers are ints.
    match c_long::from(number as c_int) {
        libc::SYS_prctl => look_at_option(first as c_int, second, third),
        libc::SYS_seccomp => look_at_operation(first, second, third),
        _ => {}
    }
    // SAFETY: libc's function of this name, with the caller's arguments. The word in the place of a missing argument
    // belongs to the caller, and is not used for a call that has fewer.
    unsafe {
        function::at::<Syscall>(SYSCALL.load(Ordering::Acquire)).map_or(-1, |real| {
            real(number, first, second, third, fourth, fifth, sixth)
        })
    }
}

/// Examines the arguments of a `prctl`. Without a filter it only asks whether the kernel knows the option.
fn look_at_option(option: c_int, mode: usize, filter: usize) {
    let is_strict = mode == libc::SECCOMP_MODE_STRICT as usize;
    let is_filter = mode == libc::SECCOMP_MODE_FILTER as usize && filter != 0;
    if option == libc::PR_SET_SECCOMP && (is_strict || is_filter) {
        contained((), session::filter_comes);
    }
}

/// Examines the arguments of a `seccomp`. Without a filter, or with flags for the strict mode, it only asks what the
/// kernel knows.
fn look_at_operation(operation: usize, flags: usize, filter: usize) {
    let is_strict =
        operation == libc::SECCOMP_SET_MODE_STRICT as usize && flags == 0 && filter == 0;
    let is_filter = operation == libc::SECCOMP_SET_MODE_FILTER as usize && filter != 0;
    if is_strict || is_filter {
        contained((), session::filter_comes);
    }
}
