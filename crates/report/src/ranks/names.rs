//! What distinguishes processes.

use std::collections::HashSet;

use crate::ranks::Rank;

/// The name of each process: its rank where no two have the same, else its process ID.
pub fn names(processes: &[Rank<'_>]) -> Vec<String> {
    let ranks: HashSet<_> = processes.iter().map(|process| process.facts.rank).collect();
    let name = |process: &Rank<'_>| match ranks.len() == processes.len() {
        true => format!("rank {}", process.facts.rank),
        false => format!("pid {}", process.pid),
    };
    processes.iter().map(name).collect()
}
