//! A record, interpreted: what happened in one process.

mod first;
mod ledger;
mod read;
mod second;
pub mod state;
pub mod text;
mod uncounted;

use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::Clock;

use crate::batches::PhaseSum;
use crate::calls::Calls;
use crate::collectives::Found as Collectives;
use crate::events::facts::Facts;
use crate::events::launches::LaunchTally;
use crate::events::recording::Recording;
use crate::events::window::Window;
use crate::iterations::sum::Sum;
use crate::iterations::unqualified::Others;
use crate::kernels::Kernels;
use crate::layers::{self, Layers};
use crate::ledger::slow::Slow;
use crate::ledger::{Ledger, LedgerDetails};
use crate::metrics::{self, Metrics};
use crate::python::Python;
use crate::routing::LayerLoad;
use crate::stacks::{self, Stacks};
use state::RecordState;

/// What happened in a process: who it is, its windows, and a section for each analysis. Times are in nanoseconds, moments of
/// `CLOCK_MONOTONIC`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Process {
    /// The file that it was read from.
    #[serde(serialize_with = "write_path")]
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// Its process ID.
    pub pid: u32,
    /// Its parent's process ID.
    pub parent: u32,
    #[serde(flatten)]
    pub facts: Facts,
    #[serde(flatten)]
    pub record: RecordState,
    #[serde(skip)]
    pub windows: Vec<Window>,
    /// The iterations of all windows together that qualify; `null`: there are none.
    #[serde(rename = "inside")]
    pub sum: Option<Sum>,
    #[serde(flatten)]
    pub others: Others,
    /// The iterations of all windows by what was in their batches, of those where that is known.
    pub phases: Vec<PhaseSum>,
    /// Where the time of the iterations goes, by cause.
    pub ledger: Ledger,
    #[serde(skip)]
    pub details: LedgerDetails,
    /// The slowest iterations of all windows, those that took longest beyond others like them first: up to 10.
    pub slowest: Vec<Slow>,
    /// What the threads of iterations ran, by samples of their stacks; `null`: that was not recorded.
    #[serde(serialize_with = "stacks::write_any")]
    #[schemars(with = "Option<Stacks>")]
    pub stacks: Stacks,
    #[serde(flatten)]
    pub calls: Calls,
    #[serde(flatten)]
    pub python: Python,
    #[serde(flatten)]
    pub kernels: Kernels,
    /// `None` where scopes were not followed.
    #[serde(flatten, serialize_with = "layers::write_any")]
    #[schemars(with = "Layers")]
    pub layers: Option<Layers>,
    /// What its ranks do together, of the kernels that were recorded.
    #[serde(skip)]
    pub(crate) collectives: Collectives,
    #[serde(flatten)]
    pub metrics: Metrics,
    /// What the layers' learned routers sent to their experts.
    #[serde(skip)]
    pub experts: Vec<LayerLoad>,
}

fn write_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl Process {
    /// Reads a record, or what another tool recorded.
    ///
    /// # Errors
    /// Where its source cannot be read.
    pub fn read(file: PathBuf, recording: &impl Recording) -> io::Result<Self> {
        Self::read_among(file, recording, 1)
    }

    /// The same of one of so many `records`, which share the memory that there is for their collectives.
    ///
    /// # Errors
    /// Where its source cannot be read.
    pub fn read_among(
        file: PathBuf,
        recording: &impl Recording,
        records: usize,
    ) -> io::Result<Self> {
        read::read(file, recording, records)
    }

    /// Finds which call launched a kernel. `clock` is that of the record that the process was read from.
    #[must_use]
    pub fn launches<'a>(&self, clock: &'a Clock) -> LaunchTally<'a> {
        let mut windows = Vec::new();
        for window in &self.windows {
            let runs = window
                .iterations
                .chunk_by(|a, b| a.gpu_busy.is_some() == b.gpu_busy.is_some());
            let taken = runs.filter(|run| run[0].gpu_busy.is_some());
            windows.extend(taken.map(|run| (run[0].start, run[run.len() - 1].end())));
        }
        LaunchTally::new(clock, &self.facts.calls, windows, self.record.dropped > 0)
    }

    /// Whether it is the record of a GPU's metrics and of no program's iterations.
    pub fn is_metrics_alone(&self) -> bool {
        !self.metrics.samples.is_empty() && self.sum.is_none()
    }

    /// Adds what other records of the same boot, whose clocks are the same, measured.
    pub fn attach(&mut self, measured: &[Self]) {
        let is_same =
            |other: &&Self| !other.facts.boot.is_empty() && other.facts.boot == self.facts.boot;
        let others = measured.iter().filter(is_same);
        let samples = others.flat_map(|other| &other.metrics.samples);
        let samples = self.metrics.samples.iter().chain(samples);
        self.metrics.sums = metrics::inside(samples, &self.windows);
    }

    /// What the recorder itself took from the program's threads, of the time of windows; `None` where there is none.
    #[must_use]
    pub fn own_share(&self) -> Option<f64> {
        let walls = self.windows.iter().map(Window::wall);
        let wall = walls.fold(0, u64::saturating_add);
        (wall > 0).then(|| self.record.own_cost as f64 / wall as f64)
    }
}
