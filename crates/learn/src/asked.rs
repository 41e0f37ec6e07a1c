//! The set of calls that have to be reported to the learner.

use tllmprof_calls::Wait;

use crate::call::SiteCall;

/// A set of the calls that can be sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked(u8);

impl Asked {
    /// All calls.
    pub const ALL: Self = Self(u8::MAX);

    /// No calls.
    pub const NONE: Self = Self(0);

    /// Of the calls that are not in the set, one in this number is still reported, by
    /// [`Learner::missed`](crate::Learner::missed). Otherwise the learner would not notice that the pattern
    /// has ended.
    pub const SAMPLE: u32 = 32;

    pub(crate) const fn only(call: SiteCall) -> Self {
        match call {
            // Uploads differ from other waits only by the call before them.
            SiteCall::Upload => Self(!(1 << SiteCall::CopyToHost as u8)),
            call => Self(1 << call as u8),
        }
    }

    /// Returns true if the set has copies to the host that may return before they are done.
    #[must_use]
    pub const fn has_copies(self) -> bool {
        self.0 & 1 << SiteCall::CopyToHost as u8 != 0
    }

    /// Returns true if the set has waits of this kind.
    #[must_use]
    pub const fn has(self, wait: Wait) -> bool {
        self.0 & 1 << SiteCall::for_wait(wait) as u8 != 0
    }
}
