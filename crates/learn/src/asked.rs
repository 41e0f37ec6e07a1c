//! The set of calls that the preloaded library has to report to the learner.

use tllmprof_calls::Wait;

use crate::call::SiteCall;

/// A set of the call types that can end an iteration: waits, and copies to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndingCalls(u8);

impl EndingCalls {
    /// The set of all call types that can end an iteration.
    pub const ALL: Self = Self(u8::MAX);

    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Sampling rate for calls that are not in the set: one in this number is still reported, through
    /// [`Learner::missed`](crate::Learner::missed). Without these samples the learner would not notice that
    /// the calls no longer repeat in the order that it has learned.
    pub const SAMPLE: u32 = 32;

    pub(crate) const fn only(call: SiteCall) -> Self {
        match call {
            // An upload wait is an ordinary wait that follows a copy to the device. To recognize upload
            // waits, all waits have to be reported, so only copies to the host are left out.
            SiteCall::Upload => Self(!(1 << SiteCall::CopyToHost as u8)),
            call => Self(1 << call as u8),
        }
    }

    /// Returns true if the set contains asynchronous copies to the host, which may return before they are
    /// done.
    #[must_use]
    pub const fn has_copies(self) -> bool {
        self.0 & 1 << SiteCall::CopyToHost as u8 != 0
    }

    /// Returns true if the set contains waits of this type.
    #[must_use]
    pub const fn has(self, wait: Wait) -> bool {
        self.0 & 1 << SiteCall::for_wait(wait) as u8 != 0
    }
}
