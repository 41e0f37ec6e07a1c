//! The CPython that was found in the process, if any.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use core::fmt;

use super::api::Api;
use tllmprof_platform::lifecycle;
use tllmprof_platform::maps::Unreadable;
use tllmprof_sync::Published;

/// A CPython library or executable that was found in the process, with the functions of its C API.
pub(crate) struct Attached {
    pub api: Api,
    /// The start of the address range of CPython's module, which ends before `end`.
    pub start: usize,
    pub end: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static ATTACHED: Published<Attached> = Published::none();
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static HAS_SUB_INTERPRETERS: AtomicBool = AtomicBool::new(false);
    /// The system error (`errno`) that prevented the installation of the hooks in an interpreter. 0
    /// if none did, [`NOT_HOOKED`] if the installation failed without an error number.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static OUT_OF_REACH: AtomicI32 = AtomicI32::new(0);
}

/// The result of the search for CPython in the process.
pub(crate) enum Presence {
    /// An interpreter was found. Its GOT slots are patched if the settings require this.
    There,
    /// An interpreter was found, but could not be hooked.
    OutOfReach(OutOfReach),
    /// No interpreter was found.
    NotFound,
}

/// The reason why an interpreter cannot be hooked.
#[derive(Clone, Copy)]
pub(crate) enum OutOfReach {
    /// The list of the process's memory mappings could not be read.
    Unreadable(Unreadable),
    /// None of the interpreter's GOT slots could be patched.
    NotHooked,
}

/// The value of [`OUT_OF_REACH`] if no GOT slot could be patched. It is negative, because error
/// numbers (`errno`) never are.
const NOT_HOOKED: i32 = -1;

impl fmt::Display for OutOfReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(unreadable) => unreadable.fmt(f),
            Self::NotHooked => f.write_str("its calls could not be hooked"),
        }
    }
}

/// Returns the interpreter that was found last. Returns `None` if none was found, or if the library has noticed that
/// it was unloaded.
pub(crate) fn get() -> Option<&'static Attached> {
    ATTACHED.get()
}

/// Stores the interpreter that was found, or `None` if it was unloaded.
pub(crate) fn set(attached: Option<&'static Attached>) {
    ATTACHED.set(attached);
}

/// Returns the C API functions of the interpreter, if one is loaded.
pub(crate) fn api() -> Option<&'static Api> {
    get().map(|attached| &attached.api)
}

/// Returns true if an interpreter was found and, if the settings require this, its GOT slots were patched.
pub(crate) fn is_there() -> bool {
    get().is_some()
}

/// Returns `There` if [`is_there`] returns true, and otherwise the reason why not.
pub(crate) fn presence() -> Presence {
    match OUT_OF_REACH.load(Ordering::Relaxed) {
        _ if is_there() => Presence::There,
        0 => Presence::NotFound,
        NOT_HOOKED => Presence::OutOfReach(OutOfReach::NotHooked),
        errno => Presence::OutOfReach(OutOfReach::Unreadable(Unreadable(errno))),
    }
}

/// Stores the reason why an interpreter that was found cannot be hooked.
pub(crate) fn is_out_of_reach(why: OutOfReach) {
    let errno = match why {
        OutOfReach::Unreadable(Unreadable(errno)) => errno,
        OutOfReach::NotHooked => NOT_HOOKED,
    };
    OUT_OF_REACH.store(errno, Ordering::Relaxed);
}

/// Returns true if the process has, or had, more than one interpreter.
pub(crate) fn has_sub_interpreters() -> bool {
    HAS_SUB_INTERPRETERS.load(Ordering::Relaxed)
}

/// Called when an interpreter other than the main one begins. From then on [`has_sub_interpreters`] returns true.
pub(crate) fn sub_interpreter_begins() {
    HAS_SUB_INTERPRETERS.store(true, Ordering::Relaxed);
}
