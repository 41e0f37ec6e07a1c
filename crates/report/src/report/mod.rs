//! Processes side by side.

mod json;
mod one;
mod several;
mod text;
mod view;

pub use json::ReportView;

use crate::findings::{self, Finding};
use crate::iterations::sum::of_which;
use crate::process::Process;
use crate::ranks::Rank;
use crate::ranks::arrivals::Arrivals;
use crate::ranks::names;
use crate::ranks::skew::Skew;

/// Processes side by side.
#[derive(Debug)]
pub struct Report {
    pub processes: Vec<Process>,
    /// What distinguishes each process from the others, such as `rank 2`.
    pub names: Vec<String>,
    /// Where there are several processes that have iterations in common.
    pub skew: Option<Skew>,
    /// Where several processes have collectives.
    pub arrivals: Option<Arrivals>,
    /// Why it is slow, if it is: the strongest first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Puts processes side by side, in the order of their ranks. What records of GPU metrics alone
    /// hold goes to the processes of the same machine, by time; such a record is no process.
    #[must_use]
    pub fn new(processes: Vec<Process>) -> Self {
        let (measured, mut processes): (Vec<_>, Vec<_>) =
            processes.into_iter().partition(Process::is_metrics_alone);
        for process in &mut processes {
            process.attach(&measured);
        }
        processes.sort_by(|a, b| {
            let key = |process: &Process| (process.facts.rank, process.pid);
            key(a)
                .cmp(&key(b))
                .then_with(|| a.facts.host.cmp(&b.facts.host))
        });
        let ranks = ranks(&processes);
        let skew = Skew::of(&ranks);
        let names = names::names(&ranks);
        let arrivals = Arrivals::of(&ranks, &names);
        let findings = findings::findings(&processes, &names, skew.as_ref(), arrivals.as_ref());
        Self {
            processes,
            names,
            skew,
            arrivals,
            findings,
        }
    }

    /// Of which iterations the shares of processes side by side are, in words, if not of all.
    #[must_use]
    pub fn of_which(&self) -> Vec<&'static str> {
        of_which(self.processes.iter().filter_map(|one| one.sum.as_ref()))
    }
}

/// The processes as ranks.
fn ranks(processes: &[Process]) -> Vec<Rank<'_>> {
    let processes = processes.iter();
    processes
        .map(|process| Rank {
            pid: process.pid,
            facts: &process.facts,
            windows: &process.windows,
            collectives: &process.collectives,
        })
        .collect()
}
