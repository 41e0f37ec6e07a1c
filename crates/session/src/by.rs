//! The rule and the rank, as messages name them.

use tllmprof_config::Step;

/// The rank of the process, once it has been looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    NotAsked,
    Known(Option<u64>),
}

impl Rank {
    /// The rank, if there is one.
    pub const fn known(self) -> Option<u64> {
        match self {
            Self::Known(rank) => rank,
            Self::NotAsked => None,
        }
    }
}

/// The rule as messages name it, and the rank where there is one.
pub struct By<'a> {
    pub step: &'a Step,
    pub rank: Rank,
}

impl core::fmt::Display for By<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.step)?;
        match self.rank {
            Rank::Known(Some(rank)) => write!(f, ", rank {rank}"),
            _ => Ok(()),
        }
    }
}
