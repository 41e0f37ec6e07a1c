//! Which ranks open windows, and which rank this process is.

use std::ffi::OsString;
use std::fmt;

use crate::error::Problem;
use crate::range::Windows;

/// Launchers' names for the rank, in the order in which they are asked.
pub const RANK_VARIABLES: [&str; 7] = [
    "TLLMPROF_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "RANK",
];

/// The rank of this process: the first of [`RANK_VARIABLES`] that holds a number.
pub fn rank(get: impl Fn(&str) -> Option<OsString>) -> Option<u64> {
    RANK_VARIABLES
        .iter()
        .find_map(|name| crate::number::parse(get(name)?.to_str()?, "").ok())
}

/// The ranks that open windows: numbers and ranges, as for windows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks(Windows);

impl Ranks {
    /// # Errors
    /// As [`Windows::parse`].
    pub fn parse(text: &str) -> Result<Self, Problem> {
        Windows::parse_as(text, "a comma list of ranks such as 0,2-3, or all").map(Self)
    }

    pub fn contains(&self, rank: u64) -> bool {
        self.0.contains(rank)
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let ranks = Ranks::parse("0, 2-3").unwrap();
        let inside: Vec<u64> = (0..6).filter(|r| ranks.contains(*r)).collect();
        assert_eq!(inside, [0, 2, 3]);
        assert!(Ranks::parse("all").unwrap().contains(u64::MAX));
        for bad in ["", "3-1", "a", "1,,2"] {
            assert!(Ranks::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_first_variable_that_is_set_wins() {
        let get = |set: &'static [(&str, &str)]| {
            rank(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
        };
        assert_eq!(get(&[]), None);
        assert_eq!(get(&[("RANK", "3")]), Some(3));
        assert_eq!(get(&[("RANK", "3"), ("SLURM_PROCID", "2")]), Some(2));
        assert_eq!(
            get(&[("SLURM_PROCID", "2"), ("TLLMPROF_RANK", "1")]),
            Some(1)
        );
        assert_eq!(get(&[("PMI_RANK", ""), ("RANK", "4")]), Some(4));
        assert_eq!(get(&[("PMI_RANK", "none"), ("RANK", "4")]), Some(4));
        assert_eq!(get(&[("RANK", "-1")]), None);
    }
}
