//! Intercepts calls of CUDA and NCCL functions, and passes them to the real functions.
//!
//! A program calls the stub of a [`thunk`], which describes a real function. It gets the stub's address in three ways
//! ("doors"): by linking to an exported function ([`export`]), by a look-up by name ([`dlsym`]), or from the driver
//! ([`proc_address`]). If a call may begin or end a step, or is recorded, the assembly code ([`arch`]) calls
//! [`entered`] before the real function and [`returned`] after it. Other crates decide what a step is.
//!
//! The module [`nvtx`] receives the NVTX ranges that the program opens.

#[doc(hidden)]
pub mod arch;
pub mod attached;
pub mod bypass;
mod collectives;
mod communicators;
mod dlsym;
mod entered;
#[doc(hidden)]
pub mod export;
mod fed;
mod followed;
mod frame;
mod gpu_times;
mod handlers;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_jumps.rs")]
pub mod jumps;
#[cfg(test)]
mod made;
mod named;
pub mod nvtx;
mod polls;
mod proc_address;
mod returned;
mod scoped;
#[cfg(test)]
#[path = "../../../tests/common/skipped.rs"]
mod skipped;
mod stubs;
#[cfg(test)]
mod tests;
mod thunk;
mod watched;

use thunk::Thunk;
use tllmprof_calls::CallSet;
use tllmprof_config::Step;
#[doc(hidden)]
pub use tllmprof_platform::lifecycle;
use tllmprof_platform::lifecycle::{OnlyThread, Stage};

pub use arch::{dlsym_door, dlvsym_door};
pub use named::start as follow_named;

/// Updates the handlers of the driver functions. The library then sees those calls return that it must record or time,
/// and those that add nodes to a graph. Does nothing if neither a record nor durations are wanted.
fn record_calls() {
    if tllmprof_recorder::is_wanted() || tllmprof_recorder::watch::is_watching() {
        Thunk::record();
    }
}

/// Called when modules may have been unloaded. Forgets the real functions that were found for exports in those modules,
/// and the named functions and patches of those modules.
pub fn modules_have_gone() {
    if tllmprof_platform::lifecycle::is_filtered() {
        return;
    }
    export::forget_unloaded();
    named::look();
}

/// Returns true if this library intercepts the function of this name.
pub fn is_hooked(name: &core::ffi::CStr) -> bool {
    dlsym::role_of(name).is_some()
}

/// The interface through which the session (the part of the library that opens and closes windows) controls the
/// interception of calls.
pub struct AllDoors;

impl tllmprof_session::Doors for AllDoors {
    fn attend(&self, calls: CallSet) {
        Thunk::attend(calls);
    }

    fn record_calls(&self) {
        record_calls();
    }

    fn captures(&self) {
        if tllmprof_scopes::are_on() {
            record_calls();
        }
    }

    fn report_named(&self) {
        named::report();
    }

    fn report_unmatched(&self, step: &Step, may_search: bool) {
        named::report_unmatched(step, may_search);
    }

    fn report_unmatched_scopes(&self, may_search: bool) {
        named::report_unmatched_scopes(may_search);
    }

    fn report_bypass(&self) {
        bypass::report();
    }

    fn attach_again(&self) -> bool {
        attached::attach_again()
    }

    fn detach(&self) -> Result<(), &'static str> {
        attached::detach()
    }

    fn write_no_range(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        write!(out, "{}", nvtx::Unseen)
    }
}

lifecycle::at_fork! {
    stage: Stage::Again,
    child: |_: &OnlyThread| record_calls(),
}

/// Called when the library is loaded. Stores which modules were loaded at start, and finds the real `dlsym` and
/// `dlvsym`.
pub fn start() {
    tllmprof_platform::resolve::remember_initial();
    dlsym::find_real();
}

/// Hooks the `dlsym` of a library that comes before this library in load order, so that look-ups through that `dlsym`
/// reach this library, too. Called when the library is loaded, if there is something to count.
pub fn lead_look_ups() {
    use core::sync::atomic::Ordering::Release;
    // Do not hook another copy of this library: that copy intercepts everything itself.
    let is_copy = |front: *mut core::ffi::c_void| {
        let module = tllmprof_platform::elf::containing(front.addr());
        module.is_some_and(|module| module.defines(c"tllmprof_attach", None).is_some())
    };
    let front = tllmprof_platform::resolve::before_us(c"dlsym");
    if let Some(front) = front.filter(|front| !is_copy(*front)) {
        dlsym::FRONT_DLSYM.store(front, Release);
        attached::lead_look_ups(attached::Hook {
            name: c"dlsym",
            ours: arch::front_dlsym_door as *const () as usize,
            real: front.addr(),
        });
    }
}

/// Returns the look-up functions that an attached library hooks: the names and addresses of the real functions.
pub fn look_ups() -> [(&'static core::ffi::CStr, *mut core::ffi::c_void); 2] {
    use core::sync::atomic::Ordering::Acquire;
    [
        (c"dlsym", dlsym::REAL_DLSYM.load(Acquire)),
        (c"dlvsym", dlsym::REAL_DLVSYM.load(Acquire)),
    ]
}
