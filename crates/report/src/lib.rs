//! What tllmprof's records show.
//!
//! [`Process::read`] goes through a record twice: once for what there is little of (iterations, windows,
//! names), and once for the rest, which it adds up iteration by iteration. So memory depends on the
//! number of iterations, which is limited, and not on the record's length. [`Report`] puts processes
//! side by side, as text ([`Report::text`]) and as JSON ([`Report::json`]).
//!
//! Every figure is computed here, once: text, JSON and the page only write it down.

#![forbid(unsafe_code)]

mod arrivals;
mod batch;
mod blocks;
mod busy;
mod causes;
mod collectives;
mod compare;
pub mod diagnosis;
mod facts;
mod first;
mod gpu;
mod groups;
mod idle;
mod iteration;
mod joined;
mod json;
mod kernel_name;
mod kernels;
mod launches;
mod layers;
mod ledger;
mod metrics;
mod names;
mod process;
mod qualify;
mod quantiles;
mod recording;
mod requests;
mod routing;
mod skew;
mod slow;
mod spans;
mod stacks;
mod state;
mod sum;
mod tally;
mod text;
mod turnaround;
mod uncounted;
mod units;
mod window;

pub use arrivals::{Arrivals, Bound, ClockJump, CollectiveGroup, HostClock, RankSum, StepSum};
pub use batch::UnqualifiedSum;
pub use blocks::{BlockKernel, Blocks, Outside};
pub use compare::{Comparison, Outcome};
pub use diagnosis::{Finding, Verdict};
pub use facts::{name, range_name};
pub use iteration::Iteration;
pub use json::{JsonReport, schema_of, write as write_json, write_text as write_json_text};
pub use kernel_name::{full as kernel_name, short as short_kernel_name};
pub use kernels::{CopyTotal, KernelSum, KernelTotal, Samples};
pub use launches::{Launch, LaunchTally, Launches};
pub use layers::{Layer, Layers, Pattern, Scopes, Unknown as UnknownLayers, Why};
pub use ledger::{Difference, Ledger, LedgerKind, LedgerRow};
pub use metrics::{MetricSample, MetricSum};
pub use process::{Named, Process};
pub use qualify::Unqualified;
pub use recording::Recording;
pub use routing::{LayerLoad, expert_gpus};
pub use skew::Skew;
pub use slow::Slow;
pub use spans::{Span, Spans};
pub use stacks::{
    ENOUGH as ENOUGH_SAMPLES, FunctionSamples, SampleCounts, StackSample, Stacks, TreeNode,
};
pub use state::State;
pub use text::Style;
pub use turnaround::Turnaround;
pub use units::{Bytes, Change, Quantity, Rate, Share, Time};
pub use window::Window;

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
        let skew = Skew::of(&processes);
        let names = names::names(&processes);
        let arrivals = Arrivals::of(&processes, &names);
        let findings = diagnosis::findings(&processes, &names, skew.as_ref(), arrivals.as_ref());
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
        sum::of_which(self.processes.iter().filter_map(|one| one.sum.as_ref()))
    }
}
