//! The rule and the rank, as messages name them.

use tllmprof_config::Step;

use super::rank::Rank;

/// The rule as messages name it, and the rank where there is one.
pub struct By<'a> {
    pub step: &'a Step,
    pub rank: Rank,
}

impl core::fmt::Display for By<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.step)?;
        match self.rank.known() {
            Some(ranked) => write!(f, ", rank {}", ranked.rank),
            None => Ok(()),
        }
    }
}
