//! Analyses of tllmprof's records.
//!
//! [`Process::read`] reads a record in up to three passes. The first pass collects small tables: iterations, windows
//! and names. In the second pass each analysis adds up its events. The third pass computes the ledger, which divides
//! the host's time by cause. The passes store sums and tables of limited size, and never all events of a record.
//! [`Report`] shows several processes side by side, as text ([`Report::text`]) and as JSON ([`Report::json`]).
//!
//! Each analysis has a folder. The folder computes the analysis's figures and defines their keys in the JSON, their
//! lines of text and their rows in a comparison. The HTML page and the exports show the same figures.

#![forbid(unsafe_code)]

mod batches;
mod calls;
mod collectives;
mod compare;
mod events;
pub mod findings;
mod iterations;
mod kernels;
mod layers;
mod ledger;
mod metrics;
mod numbers;
mod print;
mod process;
mod python;
mod ranks;
mod report;
mod routing;
mod stacks;

pub use compare::{Checked, Comparison, ComparisonOptions, Condition, Met, Outcome};
pub use events::facts::{name, range_name};
pub use events::iteration::Iteration;
pub use events::kernel_name::{full as kernel_name, short as short_kernel_name};
pub use events::launches::{Launch, LaunchTally, Launches};
pub use events::named::Named;
pub use events::origin::{Data, Origin};
pub use events::qualify::Unqualified;
pub use events::recording::Recording;
pub use events::samples::{ENOUGH as ENOUGH_SAMPLES, SampleCounts, StackSample};
pub use events::spans::{Span, Spans};
pub use events::turnaround::Turnaround;
pub use events::window::Window;
pub use events::work::{GpuWork, GpuWorkKind};
pub use findings::{ClaimedRow, Confidence, Finding, LedgerSide, Verdict};
pub use iterations::unqualified::UnqualifiedSum;
pub use kernels::blocks::{BlockKernel, Blocks, Outside};
pub use kernels::{CopyTotal, KernelSum, KernelTotal, Samples};
pub use layers::{GpuLayerPattern, Layer, Layers, Scopes, Unknown as UnknownLayers, UnknownScope};
pub use ledger::difference::Difference;
pub use ledger::slow::Slow;
pub use ledger::{Ledger, LedgerKind, LedgerRow};
pub use metrics::{MetricSample, MetricSum, may_be_one_run};
pub use numbers::quantiles::has_enough as has_enough_for_percentile;
pub use numbers::units::{Bytes, Change, Quantity, Rate, Share, Time};
pub use print::json::{schema_of, write as write_json, write_text as write_json_text};
pub use print::lines::Style;
pub use print::quote::{quoted as shell_quoted, word as shell_word};
pub use process::Process;
pub use process::gpu::{GpuSum, GpuTime};
pub use process::state::{End, State};
pub use ranks::arrivals::{
    Arrivals, Bound, ClockJump, CollectiveGroup, HostClock, RankSum, StepSum,
};
pub use ranks::skew::Skew;
pub use report::{CsvRow as TableRow, Report, ReportView, TABLES};
pub use routing::{LayerLoad, expert_gpus};
pub use stacks::{FunctionSamples, Stacks, TreeNode};
