//! The rule and the rank, in the form in which messages name them.

use tllmprof_config::Step;

use super::rank::Rank;
use tllmprof_steps::steady::Verdict;

/// The rule in the form in which messages name it, and the rank if there is one.
pub struct By<'a> {
    pub step: &'a Step,
    pub rank: Rank,
    /// The result of waiting for the time of an iteration to settle, if the window waited for that.
    pub verdict: Option<Verdict>,
}

impl core::fmt::Display for By<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.step)?;
        if let Some(ranked) = self.rank.known() {
            write!(f, ", rank {}", ranked.rank)?;
        }
        self.verdict
            .map_or(Ok(()), |verdict| write!(f, ", {verdict}"))
    }
}
