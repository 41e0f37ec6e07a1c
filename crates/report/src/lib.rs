//! What tllmprof's records show.
//!
//! [`Process::read`] goes through a record twice: once for what there is little of (iterations, windows,
//! names), and once for the rest, which it adds up iteration by iteration. So memory depends on the
//! number of iterations, which is limited, and not on the record's length. [`Report`] puts processes
//! side by side, as text ([`Report::text`]) and as JSON ([`Report::json`]).

mod causes;
mod facts;
mod gpu;
mod iteration;
mod json;
mod process;
mod quantiles;
mod skew;
mod slow;
mod tally;
mod text;
mod timeline;
mod units;
mod window;

pub use process::Process;
pub use skew::Skew;

/// Processes side by side.
#[derive(Debug)]
pub struct Report {
    pub processes: Vec<Process>,
    /// Where there are several processes that have iterations in common.
    pub skew: Option<Skew>,
}

impl Report {
    /// Puts processes side by side, in the order of their ranks.
    #[must_use]
    pub fn new(mut processes: Vec<Process>) -> Self {
        processes.sort_by(|a, b| {
            let key = |process: &Process| (process.facts.rank, process.pid);
            key(a)
                .cmp(&key(b))
                .then_with(|| a.facts.host.cmp(&b.facts.host))
        });
        let skew = Skew::of(&processes);
        Self { processes, skew }
    }
}
