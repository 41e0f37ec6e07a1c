//! The rank of the process in its distributed job.

use tllmprof_config::Ranked;

/// The rank of the process, as far as it has been looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    NotAsked,
    /// The rank is not known, for the given reason: the process may get a rank later, or there are several
    /// candidates.
    Unknown(&'static str),
    /// Nothing indicates that the process has a rank, so it is treated as rank 0.
    None,
    Known(Ranked),
}

impl Rank {
    /// The rank that the interpreter returns while Python has been asked for the rank and has not answered yet.
    pub const NOT_ANSWERED: Self = Self::Unknown("Python's main thread has not answered yet");

    /// Returns the rank; `None` if the process has no rank, or if the rank has not been found yet.
    pub const fn known(self) -> Option<Ranked> {
        match self {
            Self::Known(ranked) => Some(ranked),
            Self::NotAsked | Self::Unknown(_) | Self::None => None,
        }
    }

    /// Returns the rank number that decides whether windows open in this process; `None` as long as the
    /// decision has to wait.
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::Known(ranked) => Some(ranked.rank),
            Self::None => Some(0),
            Self::NotAsked | Self::Unknown(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_rank_a_process_counts_as_the_first() {
        assert_eq!(Rank::None.number(), Some(0));
        assert_eq!(Rank::None.known(), None);
        assert_eq!(Rank::Unknown("why").number(), None);
    }
}
