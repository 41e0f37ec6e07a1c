//! The state of the record: flags for the record and its open window, the reasons why calls are inspected before they
//! run, and access to the counters in the record's header. A window is a period in which all requested events are
//! recorded.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::Counter;

use super::space;

lifecycle::global! {
    stage: Sinks;

    /// The kinds of iterations whose events are recorded now, as bits of the enum [`Keeps`].
    #[fork(reset)]
    #[together(calls)]
    static KEPT: AtomicU8 = AtomicU8::new(0);
    /// The reasons why an intercepted call must be inspected before the real function runs, as bits of the enum
    /// [`Looks`]. If no bit is set, the library handles a call only when it returns.
    ///
    /// On x86-64, the assembly code that handles intercepted calls reads this word.
    #[fork(keep = "the settings are the same, and the rest is stored where a window opens or an iteration begins")]
    #[together(calls)]
    pub static LOOKS: AtomicU32 = AtomicU32::new(Looks::Clock as u32);
    /// True while there is a record into which threads can write.
    #[fork(reset)]
    #[together(iterations)]
    pub static IS_ON: AtomicBool = AtomicBool::new(false);
    /// True if the settings ask for a record.
    #[fork(keep = "the settings are the same")]
    pub static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// True if the record could not be created.
    #[fork(reset)]
    pub static HAS_FAILED: AtomicBool = AtomicBool::new(false);
}

/// The reason why there is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// No variable asks for a record, or the variables ask only for one that begins with a capture on demand.
    NotAskedFor,
    /// The process has more rights than its user (a set-user-ID program, for example), so it writes no files.
    Forbidden,
    /// The record's file could not be created. The error has already been logged.
    Failed,
}

impl Missing {
    /// Returns the reason why there is no record. `is_set` is true if the variable `TLLMPROF_TRACE` is set.
    pub fn why(is_set: bool) -> Self {
        match is_set {
            _ if HAS_FAILED.load(Ordering::Relaxed) => Self::Failed,
            true if !is_wanted() => Self::Forbidden,
            _ => Self::NotAskedFor,
        }
    }

    /// Returns a hint for the user, to be appended to a message.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotAskedFor => " (set TLLMPROF_TRACE=PATH)",
            Self::Forbidden | Self::Failed => "",
        }
    }
}

/// Formatted as a clause, without a capital letter or a full stop.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAskedFor => "TLLMPROF_TRACE is not set",
            Self::Forbidden => "a program with other rights than its user's writes no record",
            Self::Failed => "its record could not be written",
        })
    }
}

/// The kinds of iterations whose events may be recorded, as bits.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Keeps {
    /// Iterations of the open window.
    Window = 1,
    /// The latest iterations outside windows, which the flight recorder keeps.
    Latest = 2,
}

/// Returns true if events of a window are recorded now. If it is true, the calling thread also sees the
/// values that were stored before recording began, such as the record's id and clock. The acquire load
/// guarantees this on processors that reorder loads, such as AArch64.
#[inline]
pub fn is_recording() -> bool {
    is_kept(Keeps::Window)
}

/// Returns true if events of iterations of the kind `what` are recorded now.
#[inline]
pub(crate) fn is_kept(what: Keeps) -> bool {
    KEPT.load(Ordering::Acquire) & what as u8 != 0
}

/// Sets whether events of iterations of the kind `what` are recorded. Returns the previous setting.
pub(crate) fn keep(what: Keeps, is_kept: bool) -> bool {
    let bit = what as u8;
    let before = match is_kept {
        true => KEPT.fetch_or(bit, Ordering::AcqRel),
        false => KEPT.fetch_and(!bit, Ordering::AcqRel),
    };
    before & bit != 0
}

/// Returns true if the cheap events (such as CUDA calls and garbage collections) are recorded now: inside a window,
/// or outside one if the flight recorder keeps the latest iterations.
#[inline]
pub fn is_keeping() -> bool {
    KEPT.load(Ordering::Acquire) != 0
}

/// The reasons why an intercepted call must be inspected before the real function runs.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Looks {
    /// GPU times of iterations are being measured.
    GpuTimes = 1,
    /// The next wait for the GPU is to be measured, if the thread that runs the steps makes it.
    Wait = 2,
    /// The time of waits is summed, because a trigger (a condition that opens a window) or the search for steady
    /// iterations needs it.
    Watch = 4,
    /// Scopes (open torch modules, NVTX ranges and marked functions) are being tracked.
    Scopes = 8,
    /// The time at which a call begins must be read by Rust code, not by the assembly code: the processor's counter
    /// cannot be used as the clock, or the clock is not chosen yet.
    Clock = 16,
}

/// Returns true if calls are inspected for the reason `what`.
#[inline]
pub fn looks_for(what: Looks) -> bool {
    LOOKS.load(Ordering::Relaxed) & what as u32 != 0
}

/// Sets whether calls are inspected for the reason `what`.
pub fn look_for(what: Looks, is_wanted: bool) {
    // Usually nothing changes. Returning early then avoids writing to a cache line that all threads share.
    if looks_for(what) == is_wanted {
        return;
    }
    let bit = what as u32;
    match is_wanted {
        true => LOOKS.fetch_or(bit, Ordering::SeqCst),
        false => LOOKS.fetch_and(!bit, Ordering::SeqCst),
    };
}

/// Returns true if there is a record. If it is true, the calling thread also sees the record's id and clock,
/// as with [`is_recording`].
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Returns true if the settings ask for a record.
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Adds `more` to a counter in the record's header, if there is a record.
pub fn add(counter: Counter, more: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.add(counter, more);
    }
}

/// Stores `value` in a counter of the record's header, if there is a record. Used for a number that another module
/// counts.
pub fn set(counter: Counter, value: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(counter, value);
    }
}
