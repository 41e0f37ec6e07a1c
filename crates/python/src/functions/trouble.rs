//! What keeps functions from being marked, to be reported once.

use core::sync::atomic::{AtomicU32, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_platform::log;

lifecycle::global! {
    /// What has been met, a bit each.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static MET: AtomicU32 = AtomicU32::new(0);
}

#[derive(Clone, Copy)]
pub enum Trouble {
    /// The interpreter takes no evaluator of frames.
    NoEvaluator,
    /// Frames are not what the layout says.
    OtherFrames,
    /// Another tool's evaluator was there, at least for a while.
    OtherEvaluator,
    /// `sys.monitoring` has no number for another tool.
    NoTool,
    /// Calls were nested so deep that a thread's stack would have ended.
    Deep,
}

impl Trouble {
    const ALL: [Self; 5] = [
        Self::NoEvaluator,
        Self::OtherFrames,
        Self::OtherEvaluator,
        Self::NoTool,
        Self::Deep,
    ];

    pub fn note(self) {
        MET.fetch_or(1 << self as u32, Ordering::Relaxed);
    }

    const fn text(self) -> &'static str {
        match self {
            Self::NoEvaluator => {
                "this Python takes no evaluator of frames: its functions are neither marked nor counted"
            }
            Self::OtherFrames => {
                "this Python's frames are not as expected: its functions are neither marked nor counted"
            }
            Self::OtherEvaluator => {
                "another tool evaluated Python's frames when functions were to be marked: they are marked \
                 and counted once it has gone"
            }
            Self::NoTool => {
                "sys.monitoring has no place for another tool: functions are neither marked nor counted"
            }
            Self::Deep => {
                "Python 3.11: calls were nested so deep that half of a thread's stack was used: functions \
                 were neither marked nor counted inside those"
            }
        }
    }
}

/// Says what has been met. Allocates nothing.
pub fn report() {
    let met = MET.load(Ordering::Relaxed);
    for trouble in Trouble::ALL {
        if met & 1 << trouble as u32 != 0 {
            log::say!(Warn, "{}", trouble.text());
        }
    }
}
