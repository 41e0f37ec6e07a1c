//! The rule and the rank, as messages name them.

use tllmprof_config::Step;

use super::rank::Rank;
use tllmprof_steps::steady::Verdict;

/// The rule as messages name it, and the rank where there is one.
pub struct By<'a> {
    pub step: &'a Step,
    pub rank: Rank,
    /// What became of the time of an iteration, of a window that waited for it to settle.
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
