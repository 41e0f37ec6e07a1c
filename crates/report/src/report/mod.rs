//! A report on one or several processes. With several, it compares them.

mod csv;
mod json;
mod one;
mod several;
mod text;
mod view;

pub use csv::{CsvRow, TABLES};
pub use json::ReportView;

use crate::events::origin::Data;
use crate::findings::{self, Finding};
use crate::iterations::sum::of_which;
use crate::process::Process;
use crate::ranks::Rank;
use crate::ranks::arrivals::Arrivals;
use crate::ranks::names;
use crate::ranks::skew::Skew;

/// A report on one or several processes, with comparisons of these processes and the findings.
#[derive(Debug)]
pub struct Report {
    pub processes: Vec<Process>,
    /// For each process, a name that distinguishes it from the other processes, such as `rank 2`.
    pub names: Vec<String>,
    /// True if the processes may belong to one job. If not, they are not compared with each other.
    pub is_one_job: bool,
    /// The comparison of the processes' iterations; `None` unless several processes of one job have
    /// iterations in common.
    pub skew: Option<Skew>,
    /// The comparison of the processes' collectives; `None` unless several processes of one job
    /// have collectives.
    pub arrivals: Option<Arrivals>,
    /// The findings: those that hold come first, and the one with the greatest loss is the first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns a report on processes, which it sorts by rank and process ID. A record that contains only GPU metrics is
    /// not shown as a process; its samples are added to the processes of the same machine, by time.
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
        let is_one_job = names::is_one_job(&ranks);
        let names = names::names(&ranks);
        // If the iterations of a trace are unknown, its process cannot be compared with others iteration by
        // iteration. In that case, none of the processes are compared with each other.
        let is_counted = |process: &Process| !process.facts.origin.lacks(Data::Iterations);
        let compared = match is_one_job && processes.iter().all(is_counted) {
            true => &ranks[..],
            false => &[],
        };
        let skew = Skew::find(compared);
        let arrivals = Arrivals::find(compared, &names);
        let findings = findings::findings(&processes, &names, skew.as_ref(), arrivals.as_ref());
        Self {
            processes,
            names,
            is_one_job,
            skew,
            arrivals,
            findings,
        }
    }

    /// Returns the lines that say on which iterations the shares of several processes are based, if
    /// not on all iterations.
    #[must_use]
    pub fn of_which(&self) -> Vec<&'static str> {
        of_which(self.processes.iter().filter_map(|one| one.sum.as_ref()))
    }
}

/// Returns the data of each process that are needed to compare it with other processes.
fn ranks(processes: &[Process]) -> Vec<Rank<'_>> {
    let processes = processes.iter();
    processes
        .map(|process| Rank {
            pid: process.pid,
            file: &process.file,
            facts: &process.facts,
            windows: &process.windows,
            collectives: &process.collectives,
        })
        .collect()
}
