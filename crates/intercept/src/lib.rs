//! How a call reaches us, and how it goes on.
//!
//! Three doors lead to the same [`thunk`]s: functions that callers are linked to ([`export`]),
//! functions that they look up by name ([`dlsym`]), and functions that the driver hands out
//! ([`proc_address`]). The assembler ([`arch`]) hands a call that has to be thought about
//! or recorded to [`entered`], and to [`returned`] when it comes back. Nothing here decides what a step is.
//!
//! Ranges that the program opens come by a way of their own: [`nvtx`].

#[doc(hidden)]
pub mod arch;
pub mod attached;
pub mod bypass;
mod communicators;
mod dlsym;
mod entered;
#[doc(hidden)]
pub mod export;
mod fed;
mod followed;
mod frame;
mod handlers;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_jumps.rs")]
pub mod jumps;
#[cfg(test)]
mod made;
mod named;
pub mod nvtx;
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
use tllmprof_calls::Calls;
use tllmprof_config::Step;
#[doc(hidden)]
pub use tllmprof_platform::lifecycle;
use tllmprof_platform::lifecycle::{OnlyThread, Stage};

pub use arch::{dlsym_door, dlvsym_door};
pub use named::start as follow_named;

/// Has the driver's calls recorded while a window is open, those timed whose times are watched, and those noted that make
/// nodes of a graph.
fn record_calls() {
    if tllmprof_recorder::is_wanted() || tllmprof_recorder::watch::is_watching() {
        Thunk::record();
    }
}

/// Modules may have gone: what is known of them is forgotten.
pub fn modules_have_gone() {
    if tllmprof_platform::lifecycle::is_filtered() {
        return;
    }
    export::forget_unloaded();
    named::look();
}

/// Whether the library itself stands in for the function of this name.
pub fn is_hooked(name: &core::ffi::CStr) -> bool {
    dlsym::role_of(name).is_some()
}

/// The doors, for the session.
pub struct AllDoors;

impl tllmprof_session::Doors for AllDoors {
    fn attend(&self, calls: Calls) {
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

    fn detach(&self) -> bool {
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

/// Gets the doors ready. For the constructor.
pub fn start() {
    tllmprof_platform::resolve::remember_initial();
    dlsym::find_real();
}

/// A library in front of this one may define `dlsym`: what others look up by that has to be found here, too. For the
/// constructor, where there is something to count.
pub fn lead_look_ups() {
    use core::sync::atomic::Ordering::Release;
    // Another copy of this library finds everything itself.
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

/// The look-up functions that a library which is attached stands in front of: their names, and what it goes on to.
pub fn look_ups() -> [(&'static core::ffi::CStr, *mut core::ffi::c_void); 2] {
    use core::sync::atomic::Ordering::Acquire;
    [
        (c"dlsym", dlsym::REAL_DLSYM.load(Acquire)),
        (c"dlvsym", dlsym::REAL_DLVSYM.load(Acquire)),
    ]
}
