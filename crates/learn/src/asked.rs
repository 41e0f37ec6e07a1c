//! Which calls have to be reported to the learner.

use tllmprof_calls::Wait;

use crate::call::SiteCall;

/// A set of the calls that can be sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked(u8);

impl Asked {
    /// All of them.
    pub const ALL: Self = Self(u8::MAX);

    /// One of so many calls that are not in the set is reported all the same, by
    /// [`Learner::missed`](crate::Learner::missed): that the pattern is gone must be noticed.
    pub const SAMPLE: u32 = 32;

    pub(crate) const fn only(call: SiteCall) -> Self {
        match call {
            // Only what was called before distinguishes it from other waits.
            SiteCall::Upload => Self(!(1 << SiteCall::CopyToHost as u8)),
            call => Self(1 << call as u8),
        }
    }

    /// Whether copies to the host that may return before they are done are among them.
    #[must_use]
    pub const fn has_copies(self) -> bool {
        self.0 & 1 << SiteCall::CopyToHost as u8 != 0
    }

    /// Whether waits of this kind are among them.
    #[must_use]
    pub const fn has(self, wait: Wait) -> bool {
        self.0 & 1 << SiteCall::of(wait) as u8 != 0
    }
}
