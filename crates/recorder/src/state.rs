//! Whether there is a record and a window, what calls are looked at for meanwhile, and the counters of the record's header.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::Counter;

use super::space;

lifecycle::global! {
    stage: Sinks;

    /// Of what events are kept now, as [`Keeps`] has its bits.
    #[fork(reset)]
    #[together(calls)]
    static KEPT: AtomicU8 = AtomicU8::new(0);
    /// What calls are looked at for before they go on, as [`Looks`] has its bits. Mostly for nothing: a call is recorded when it
    /// returns.
    ///
    /// The assembler of the doors looks at it.
    #[fork(keep = "the settings are the same, and the rest is stored where a window opens or an iteration begins")]
    #[together(calls)]
    pub static LOOKS: AtomicU32 = AtomicU32::new(Looks::Clock as u32);
    /// There is a record.
    #[fork(reset)]
    #[together(iterations)]
    pub static IS_ON: AtomicBool = AtomicBool::new(false);
    /// A record was asked for.
    #[fork(keep = "the settings are the same")]
    pub static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// It could not be made.
    #[fork(reset)]
    pub static HAS_FAILED: AtomicBool = AtomicBool::new(false);
}

/// Why there is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// No variable asks for one, or for one of captures on demand alone.
    NotAskedFor,
    /// The process has rights that its user has not, and writes no files.
    Forbidden,
    /// Its file could not be made, which has been reported.
    Failed,
}

impl Missing {
    /// Of a process whose variable `TLLMPROF_TRACE` is set if `is_set`.
    pub fn why(is_set: bool) -> Self {
        match is_set {
            _ if HAS_FAILED.load(Ordering::Relaxed) => Self::Failed,
            true if !is_wanted() => Self::Forbidden,
            _ => Self::NotAskedFor,
        }
    }

    /// What to do about it.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotAskedFor => " (set TLLMPROF_TRACE=PATH)",
            Self::Forbidden | Self::Failed => "",
        }
    }
}

/// As a clause.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAskedFor => "TLLMPROF_TRACE is not set",
            Self::Forbidden => "a program with other rights than its user's writes no record",
            Self::Failed => "its record could not be written",
        })
    }
}

/// What events may be kept of.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Keeps {
    /// The window that is open.
    Window = 1,
    /// The latest iterations outside windows.
    Latest = 2,
}

/// Whether events are kept now. If they are, the calling thread finds the record's id and clock: where loads may be
/// reordered, as on AArch64, only an acquire load guarantees that.
#[inline]
pub fn is_recording() -> bool {
    is_kept(Keeps::Window)
}

/// Whether events of this are kept now.
#[inline]
pub fn is_kept(what: Keeps) -> bool {
    KEPT.load(Ordering::Acquire) & what as u8 != 0
}

/// Says whether they are from now on; whether they were.
pub fn keep(what: Keeps, is_kept: bool) -> bool {
    let bit = what as u8;
    let before = match is_kept {
        true => KEPT.fetch_or(bit, Ordering::AcqRel),
        false => KEPT.fetch_and(!bit, Ordering::AcqRel),
    };
    before & bit != 0
}

/// Whether events are kept that are cheap: while a window is open, and outside where the latest iterations are kept.
#[inline]
pub fn is_keeping() -> bool {
    KEPT.load(Ordering::Acquire) != 0
}

/// What a recorded call may be looked at for before it goes on.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Looks {
    /// GPU times depend on it.
    GpuTimes = 1,
    /// The next wait of the thread that makes the steps is asked about.
    Wait = 2,
    /// Somebody wants to know how long waits take.
    Watch = 4,
    /// Scopes are followed.
    Scopes = 8,
    /// Ticks are not those of the processor's counter, or not chosen yet.
    Clock = 16,
}

/// Whether calls are looked at for this.
#[inline]
pub fn looks_for(what: Looks) -> bool {
    LOOKS.load(Ordering::Relaxed) & what as u32 != 0
}

/// Says whether they are from now on.
pub fn look_for(what: Looks, is_wanted: bool) {
    // Most often that is so already, and the cache line stays as it is.
    if looks_for(what) == is_wanted {
        return;
    }
    let bit = what as u32;
    match is_wanted {
        true => LOOKS.fetch_or(bit, Ordering::SeqCst),
        false => LOOKS.fetch_and(!bit, Ordering::SeqCst),
    };
}

/// Whether there is a record. Where there is, the calling thread finds its id and clock, as above.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Whether one was asked for.
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

/// Sets a counter of the record that is kept elsewhere, if there is one.
pub fn set(counter: Counter, value: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(counter, value);
    }
}
