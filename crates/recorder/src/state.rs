//! The state of the record: flags for the record and its open window, the reasons to check calls, and the counters
//! of the header.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::Counter;

use super::space;

lifecycle::global! {
    stage: Sinks;

    /// The kinds of iterations whose events are kept now, as bits of [`Keeps`].
    #[fork(reset)]
    #[together(calls)]
    static KEPT: AtomicU8 = AtomicU8::new(0);
    /// The reasons for which calls are checked before they continue, as bits of [`Looks`]. Most calls have
    /// none: a call is recorded when it returns.
    ///
    /// The assembler of the doors reads it.
    #[fork(keep = "the settings are the same, and the rest is stored where a window opens or an iteration begins")]
    #[together(calls)]
    pub static LOOKS: AtomicU32 = AtomicU32::new(Looks::Clock as u32);
    /// True if there is a record.
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
    /// No variable asks for a record, or only for one of captures on demand.
    NotAskedFor,
    /// The process runs with rights that its user does not have, so it writes no files.
    Forbidden,
    /// The record's file could not be created. That has been reported.
    Failed,
}

impl Missing {
    /// Returns the reason, for a process whose variable `TLLMPROF_TRACE` is set if `is_set`.
    pub fn why(is_set: bool) -> Self {
        match is_set {
            _ if HAS_FAILED.load(Ordering::Relaxed) => Self::Failed,
            true if !is_wanted() => Self::Forbidden,
            _ => Self::NotAskedFor,
        }
    }

    /// Returns a hint for the user, as the end of a message.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotAskedFor => " (set TLLMPROF_TRACE=PATH)",
            Self::Forbidden | Self::Failed => "",
        }
    }
}

/// Written as a clause.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAskedFor => "TLLMPROF_TRACE is not set",
            Self::Forbidden => "a program with other rights than its user's writes no record",
            Self::Failed => "its record could not be written",
        })
    }
}

/// The kinds of iterations whose events may be kept.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Keeps {
    /// Events of the open window are kept.
    Window = 1,
    /// Events of the latest iterations outside windows are kept.
    Latest = 2,
}

/// Returns true if events of a window are kept now. If so, the calling thread sees the record's id and clock:
/// where loads may be reordered, as on AArch64, only an acquire load guarantees that.
#[inline]
pub fn is_recording() -> bool {
    is_kept(Keeps::Window)
}

/// Returns true if events of this kind are kept now.
#[inline]
pub fn is_kept(what: Keeps) -> bool {
    KEPT.load(Ordering::Acquire) & what as u8 != 0
}

/// Sets whether events of this kind are kept. Returns the old value.
pub fn keep(what: Keeps, is_kept: bool) -> bool {
    let bit = what as u8;
    let before = match is_kept {
        true => KEPT.fetch_or(bit, Ordering::AcqRel),
        false => KEPT.fetch_and(!bit, Ordering::AcqRel),
    };
    before & bit != 0
}

/// Returns true if cheap events are kept: in a window, and outside it if the latest iterations are kept.
#[inline]
pub fn is_keeping() -> bool {
    KEPT.load(Ordering::Acquire) != 0
}

/// The reasons to check a recorded call before it continues.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Looks {
    /// GPU times depend on it.
    GpuTimes = 1,
    /// The next wait of the thread that makes the steps is measured.
    Wait = 2,
    /// A trigger needs to know how long waits take.
    Watch = 4,
    /// Scopes are followed.
    Scopes = 8,
    /// Ticks are not those of the processor's counter, or the clock is not chosen yet.
    Clock = 16,
}

/// Returns true if calls are checked for this reason.
#[inline]
pub fn looks_for(what: Looks) -> bool {
    LOOKS.load(Ordering::Relaxed) & what as u32 != 0
}

/// Sets whether calls are checked for this reason.
pub fn look_for(what: Looks, is_wanted: bool) {
    // Usually nothing changes, and the cache line stays unmodified.
    if looks_for(what) == is_wanted {
        return;
    }
    let bit = what as u32;
    match is_wanted {
        true => LOOKS.fetch_or(bit, Ordering::SeqCst),
        false => LOOKS.fetch_and(!bit, Ordering::SeqCst),
    };
}

/// Returns true if there is a record. If so, the calling thread sees its id and clock, as above.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Returns true if the settings ask for a record.
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Adds to a counter of the record, if there is one.
pub fn add(counter: Counter, more: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.add(counter, more);
    }
}

/// Sets a counter of the record whose value is kept elsewhere, if there is a record.
pub fn set(counter: Counter, value: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(counter, value);
    }
}
