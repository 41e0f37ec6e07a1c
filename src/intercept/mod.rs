//! How a call reaches us, and how it goes on.
//!
//! Three doors lead to the same [`thunk`]s: functions that callers are linked to ([`export`]),
//! functions that they look up by name ([`dlsym`]), and functions that the driver hands out
//! ([`proc_address`]). [`dispatch`] is where a call that has to be thought about leaves the
//! assembler ([`arch`]). Nothing here decides what a step is.
//!
//! Ranges that the program opens come by a way of their own: [`nvtx`].

#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod arch;
mod dispatch;
mod dlsym;
mod export;
pub mod gate;
#[cfg_attr(target_arch = "aarch64", path = "arch/gate_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/gate_x86_64.rs")]
mod gate_arch;
mod libc_hooks;
mod named;
#[cfg_attr(target_arch = "aarch64", path = "arch/named_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/named_x86_64.rs")]
mod named_arch;
pub mod nvtx;
mod proc_address;
mod recorded;
mod resolve;
mod thunk;
mod watched;

use thunk::Thunk;
use tllmprof_calls::Calls;

#[cfg(not(all(
    any(target_arch = "aarch64", target_arch = "x86_64"),
    target_endian = "little",
    target_pointer_width = "64",
    target_os = "linux",
    target_env = "gnu"
)))]
compile_error!("the doors are written for x86-64 and AArch64 Linux with glibc");

pub use arch::{Tls, tls};
pub use named::{
    Inside, Redirect, redirect, start as follow_named, tell as tell_named,
    tell_unmatched as tell_unnamed, watch_modules,
};

/// What is locked in the doors over a fork.
pub struct Kept {
    tables: [bool; 2],
    named: bool,
    walk: bool,
}

/// Keeps the doors' locks over a fork: a child must not find them held by a thread that it lacks.
pub fn before_fork() -> Kept {
    Kept {
        tables: export::before_fork(),
        named: named::before_fork(),
        walk: crate::elf::before_fork(),
    }
}

/// After the fork, in the child: whoever held the doors' locks is not there any more.
///
/// # Safety
/// The process has one thread.
pub unsafe fn in_child() {
    crate::elf::in_child();
    gate::in_child();
    // SAFETY: the caller's promise.
    unsafe {
        named::in_child();
        export::in_child();
        nvtx::in_child();
    }
}

/// After the fork, in the parent.
pub fn after_fork(kept: &Kept) {
    if kept.walk {
        crate::elf::after_fork();
    }
    if kept.named {
        named::after_fork();
    }
    export::after_fork(kept.tables);
}

/// Has the runtime's functions for `calls` seen, too, and no others where the driver's suffice.
pub fn attend(calls: Calls) {
    Thunk::attend(calls);
}

/// Has the driver's calls recorded while a window is open.
pub fn record_calls() {
    if crate::record::is_wanted() {
        Thunk::record();
    }
}

/// Whether this library comes before one that has `name`, in the order of loading.
pub fn comes_before(name: &core::ffi::CStr) -> bool {
    resolve::next(name).is_some()
}

/// Gets the doors ready. For the constructor.
pub fn start() {
    resolve::remember_initial();
    dlsym::find_real();
    libc_hooks::find_real();
}

/// Runs `act` so that no call that it makes on this thread counts: they look nested in one that
/// has been counted.
#[inline(never)]
pub fn uncounted(act: &mut dyn FnMut()) {
    let mark: usize = 0;
    let mark = core::hint::black_box(&raw const mark);
    // SAFETY: the block is the calling thread's own; the mark lies in this frame until the old one
    // is back.
    unsafe {
        let block = tls();
        let outer = ((*block).outer, (*block).outer_return, (*block).trail);
        ((*block).outer, (*block).outer_return) = (mark.addr(), *mark);
        (*block).trail = core::ptr::null();
        act();
        ((*block).outer, (*block).outer_return, (*block).trail) = outer;
    }
}
