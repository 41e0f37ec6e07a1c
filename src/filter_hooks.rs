//! Hooks `prctl` and `syscall`, with which a program can install a filter for system calls.
//!
//! Programs call `syscall` on fast paths, for example in their locks. So each hook only compares the first argument,
//! and jumps to libc's function with all arguments unchanged, unless the call may install a filter. Calls that may
//! install a filter are examined first. A program that executes the system call instruction itself is not noticed.

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::panics::contained;
use tllmprof_platform::{function, lifecycle, resolve};
use tllmprof_session as session;

use crate::system_calls;

lifecycle::global! {
    /// The real functions `prctl` and `syscall` of libc, which the hooks call. Until [`find_real`] has found them,
    /// these are functions of this library that make the system calls.
    #[fork(keep = "the child's modules are its parent's")]
    static PRCTL: AtomicPtr<c_void> = AtomicPtr::new(system_calls::prctl as *mut c_void);
    #[fork(keep = "as prctl")]
    static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(system_calls::syscall as *mut c_void);
}

const HOOKS: [(&CStr, &AtomicPtr<c_void>); 2] = [(c"prctl", &PRCTL), (c"syscall", &SYSCALL)];

/// Finds libc's `prctl` and `syscall`, which the hooks call. Called when the library is loaded.
pub(crate) fn find_real() {
    for (name, place) in HOOKS {
        // This library comes after libc in the search order if it was loaded by NVTX or `tllmprof attach`. Then
        // `next`, which searches only later modules, finds nothing, and libc is searched.
        if let Some(real) = resolve::next(name).or_else(|| resolve::of_c_library(name)) {
            place.store(real, Ordering::Release);
        }
    }
}

/// Returns the name of each function that this module hooks, and the address of libc's real function.
pub(crate) fn all() -> impl Iterator<Item = (&'static CStr, *mut c_void)> {
    HOOKS
        .into_iter()
        .map(|(name, place)| (name, place.load(Ordering::Acquire)))
}

/// # Safety
/// The conditions are those of libc's function of this name.
// SAFETY: the symbol is meant to replace libc's function, and jumps to it.
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

/// The difference between the numbers of the system calls `prctl` and `seccomp`, on x86-64. The hook subtracts the
/// number of `prctl` from the number of the call. With one test instruction, it finds out if the result has only bits
/// that this difference has. `prctl`, `seccomp` and two other system calls pass this test.
#[cfg(target_arch = "x86_64")]
const DIFFERING_BITS: i64 = libc::SYS_seccomp - libc::SYS_prctl;

/// # Safety
/// The conditions are those of libc's function of this name.
// SAFETY: the symbol is meant to replace libc's function, and jumps to it.
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

/// Examines a call `prctl(PR_SET_SECCOMP, …)`, and then calls libc's `prctl`.
unsafe extern "C" fn look_at_prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    // No panic: `look_at_option` catches panics of our own code; the rest is libc's function.
    type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
    look_at_option(option, second, third);
    // SAFETY: this is libc's function of this name, called with the caller's arguments.
    unsafe {
        function::at::<Prctl>(PRCTL.load(Ordering::Acquire))
            .map_or(-1, |real| real(option, second, third, fourth, fifth))
    }
}

/// Examines a call `syscall(SYS_seccomp, …)` or `syscall(SYS_prctl, …)`, and then calls libc's `syscall`. Some other
/// system calls come here, too (see `DIFFERING_BITS`). They may have six arguments and are only passed on.
unsafe extern "C" fn look_at_syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    // No panic: panics of our own code are caught in the functions that examine the arguments.
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // The kernel uses only the lower 32 bits of the system call's number.
    match c_long::from(number as c_int) {
        libc::SYS_prctl => look_at_option(first as c_int, second, third),
        libc::SYS_seccomp => look_at_operation(first, second, third),
        _ => {}
    }
    // SAFETY: this is libc's function of this name, called with the caller's arguments. For a call with fewer
    // arguments, a word that belongs to the caller is passed in place of each missing argument, and is not used.
    unsafe {
        function::at::<Syscall>(SYSCALL.load(Ordering::Acquire)).map_or(-1, |real| {
            real(number, first, second, third, fourth, fifth, sixth)
        })
    }
}

/// Examines the arguments of `prctl`. If the call installs a filter, informs the session (the part of the library that
/// counts steps) before the filter is installed. A call without a filter only asks if the kernel knows the option.
fn look_at_option(option: c_int, mode: usize, filter: usize) {
    let is_strict = mode == libc::SECCOMP_MODE_STRICT as usize;
    let is_filter = mode == libc::SECCOMP_MODE_FILTER as usize && filter != 0;
    if option == libc::PR_SET_SECCOMP && (is_strict || is_filter) {
        contained((), session::filter_comes);
    }
}

/// Examines the arguments of `seccomp`. If the call installs a filter, informs the session (the part of the library
/// that counts steps) before the filter is installed. Without a filter, or with flags for the strict mode, the call
/// only asks what the kernel supports.
fn look_at_operation(operation: usize, flags: usize, filter: usize) {
    let is_strict =
        operation == libc::SECCOMP_SET_MODE_STRICT as usize && flags == 0 && filter == 0;
    let is_filter = operation == libc::SECCOMP_SET_MODE_FILTER as usize && filter != 0;
    if is_strict || is_filter {
        contained((), session::filter_comes);
    }
}
