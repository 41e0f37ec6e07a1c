//! The CPython that the process has, if it has one.

use core::sync::atomic::{AtomicBool, Ordering};

use super::api::Api;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Published;

/// An interpreter that was found.
pub struct Attached {
    pub api: Api,
    /// Where its module lies.
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
}

/// The one that was found last, if it is there.
pub fn get() -> Option<&'static Attached> {
    ATTACHED.get()
}

/// From here on it is this one.
pub fn set(attached: Option<&'static Attached>) {
    ATTACHED.set(attached);
}

/// The interpreter's functions, if it is there.
pub fn api() -> Option<&'static Api> {
    get().map(|attached| &attached.api)
}

/// Whether there is an interpreter, or has been one.
pub fn is_there() -> bool {
    get().is_some()
}

/// Whether the process has, or had, more than one interpreter.
pub fn has_sub_interpreters() -> bool {
    HAS_SUB_INTERPRETERS.load(Ordering::Relaxed)
}

/// There is another interpreter beside the main one.
pub fn sub_interpreter_begins() {
    HAS_SUB_INTERPRETERS.store(true, Ordering::Relaxed);
}
