//! Formats the rule for a step, and the rank, for messages.

use tllmprof_config::Step;

use super::rank::Rank;
use tllmprof_steps::steady::Verdict;

/// The rule for a step, and the rank if there is one, formatted for messages.
pub(crate) struct By<'a> {
    pub step: &'a Step,
    pub rank: Rank,
    /// The result of waiting for steady iterations (iterations of similar duration), if the window
    /// waited for them.
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
