//! A process with all results of the analyses, as read from its record.

mod first;
pub(crate) mod gpu;
mod last;
mod ledger;
mod read;
mod second;
pub(crate) mod state;
pub(crate) mod text;
mod uncounted;

use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::Clock;

use crate::batches::PhaseSum;
use crate::calls::Calls;
use crate::collectives::Collectives;
use crate::events::facts::Facts;
use crate::events::kernel_windows::KernelWindows;
use crate::events::launches::LaunchTally;
use crate::events::recording::Recording;
use crate::events::window::Window;
use crate::iterations::sum::Sum;
use crate::iterations::unqualified::Others;
use crate::kernels::Kernels;
use crate::layers::{self, Layers};
use crate::ledger::Ledger;
use crate::ledger::slow::Slow;
use crate::metrics::{MeasuredProcess, Metrics, SampledRecord};
use crate::numbers::units::of_some;
use crate::python::Python;
use crate::routing::LayerLoad;
use crate::stacks::{self, Stacks};
use gpu::GpuTime;
use state::RecordState;

/// A process: its identity, its windows, and one section for each analysis. Durations are in nanoseconds, and times are
/// nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Process {
    /// The path of the file that the process was read from.
    #[serde(serialize_with = "write_path")]
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// The process ID.
    pub pid: u32,
    /// The process ID of the parent process.
    pub parent: u32,
    #[serde(flatten)]
    pub facts: Facts,
    #[serde(flatten)]
    pub record: RecordState,
    #[serde(skip)]
    pub windows: Vec<Window>,
    /// Sums over the qualifying iterations of all windows, which are those whose `qualifies` is true; `null` if there
    /// are none.
    #[serde(rename = "inside")]
    pub sum: Option<Sum>,
    #[serde(flatten)]
    pub gpu: GpuTime,
    #[serde(flatten)]
    pub others: Others,
    /// Sums over the iterations of all windows by the phase of their batches, such as prefill or decode. Iterations
    /// whose batch is not known are left out.
    pub phases: Vec<PhaseSum>,
    /// The time of the iterations of all windows, divided by cause.
    pub ledger: Ledger,
    /// The iterations that took longer than comparable iterations or the median: at most 10, the longest first.
    pub slowest: Vec<Slow>,
    /// Stack samples of the threads that ran iterations; `null` if stacks were not recorded.
    #[serde(serialize_with = "stacks::write_any")]
    #[schemars(with = "Option<Stacks>")]
    pub stacks: Stacks,
    #[serde(flatten)]
    pub calls: Calls,
    #[serde(flatten)]
    pub python: Python,
    #[serde(flatten)]
    pub kernels: Kernels,
    /// GPU time by layer; `None` if scopes were not recorded.
    #[serde(flatten, serialize_with = "layers::write_any")]
    #[schemars(with = "Layers")]
    pub layers: Option<Layers>,
    /// The collectives among the kernels that were recorded.
    #[serde(skip)]
    pub(crate) collectives: Collectives,
    #[serde(flatten)]
    pub metrics: Metrics,
    /// For each layer with a learned router, the number of tokens that each of the layer's experts received.
    #[serde(skip)]
    pub experts: Vec<LayerLoad>,
}

fn write_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl Process {
    /// Returns the label for the GPU time of iterations, which depends on the method of
    /// measurement. If only some iterations were measured, the label contains their number. Returns
    /// `None` if GPU time was not measured.
    #[must_use]
    pub fn gpu_name(&self) -> Option<String> {
        let sum = self.sum.as_ref()?;
        sum.gpu.as_ref()?;
        let span = sum.gpu_span();
        let span = span.map(|(name, _)| format!("{} {name}", self.gpu.label()));
        let name = span.unwrap_or_else(|| self.gpu.busy_name());
        Some(name + &of_some(sum.gpu_iterations, sum.gpu_among()))
    }

    /// Reads a tllmprof record, or the recording of another profiler.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn read(file: PathBuf, recording: &impl Recording) -> io::Result<Self> {
        Self::read_among(file, recording, 1)
    }

    /// Reads one of several records. `records` is the number of all these records, which share a limit on the memory
    /// for collectives.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn read_among(
        file: PathBuf,
        recording: &impl Recording,
        records: usize,
    ) -> io::Result<Self> {
        read::read(file, recording, records)
    }

    /// Returns a tally that finds the launching call of each kernel. `clock` is the clock of this
    /// process's record.
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
        let windows = KernelWindows::new(windows);
        LaunchTally::new(clock, &self.facts.calls, windows, self.record.dropped > 0)
    }

    /// Returns true if the user asked for kernels.
    pub(crate) fn asked_for_kernels(&self) -> bool {
        let mut settings = self.facts.asked.settings.iter();
        settings.any(|setting| setting.starts_with("TLLMPROF_KERNELS=") && !setting.ends_with("=0"))
    }

    /// Returns true if the user asked for kernels, but no window opened. Kernels are recorded only in windows, and not in
    /// the iterations that the flight recorder kept.
    pub(crate) fn lacks_kernel_window(&self) -> bool {
        let past = self.windows.iter().filter(|one| one.past).count();
        let has_opened =
            self.record.windows_opened > past as u64 || self.windows.iter().any(|one| !one.past);
        self.asked_for_kernels() && !has_opened && self.facts.origin.is_own()
    }

    /// Returns true if the record contains metrics of GPUs but no iterations, because `tllmprof`
    /// recorded only metrics.
    pub fn is_metrics_alone(&self) -> bool {
        !self.metrics.samples.samples.is_empty() && self.sum.is_none()
    }

    /// Adds the GPU metrics from other records. Only records from the same boot of the same machine as this
    /// record are used, because their times are on the same clock.
    pub fn attach(&mut self, measured: &[Self]) {
        let is_same =
            |other: &&Self| !other.facts.boot.is_empty() && other.facts.boot == self.facts.boot;
        let others = measured.iter().filter(is_same);
        let others = others.map(|other| SampledRecord {
            pid: other.pid,
            run: &other.facts.run,
            samples: &other.metrics.samples,
            gpu_nodes: &other.facts.software.gpu_nodes,
            power_limits: &other.facts.software.power_limits,
            refused: &other.facts.asked.refused,
        });
        let others: Vec<_> = others.collect();
        let of = MeasuredProcess {
            pid: self.pid,
            parent: self.parent,
            run: &self.facts.run,
            windows: &self.windows,
        };
        self.metrics.attach(of, &others);
    }

    /// Returns the estimated share of the windows' time that another profiler's recording took, as
    /// a fraction; `None` if there is no estimate, or if tllmprof recorded the process.
    #[must_use]
    pub fn profiler_share(&self) -> Option<f64> {
        self.facts.origin.cost_share(&self.windows)
    }

    /// Returns the share of the windows' time that tllmprof's recording took on the program's threads, as a fraction.
    /// The pauses in which the recording of kernels was switched on or off are left out of both times: they lie between
    /// iterations, so they made no iteration longer. Returns `None` if the share is not known (see
    /// [`Self::own_share_with_pauses`]).
    #[must_use]
    pub fn own_share(&self) -> Option<f64> {
        let (own, wall) = self.own_time()?;
        let pauses = self.own_windows().map(Window::switch_pauses).sum();
        let (own, wall) = (own.saturating_sub(pauses), wall.saturating_sub(pauses));
        Some(own as f64 / wall.max(1) as f64)
    }

    /// Returns the same share as [`Self::own_share`], with the pauses between iterations in which the recording of
    /// kernels was switched on or off. Returns `None` if there are no windows or the record is damaged. Also returns
    /// `None` if some windows are missing in the record: the measured time of the recorder covers all windows, so it
    /// cannot be compared with the time of the others.
    pub(crate) fn own_share_with_pauses(&self) -> Option<f64> {
        let (own, wall) = self.own_time()?;
        Some(own as f64 / wall as f64)
    }

    /// Returns the time that the recorder took in all windows, and the time of these windows, in nanoseconds.
    fn own_time(&self) -> Option<(u64, u64)> {
        let has_all = self.own_windows().count() as u64 >= self.record.windows_opened;
        if !has_all || !self.record.damage.is_none() {
            return None;
        }
        let walls = self.own_windows().map(Window::wall);
        let wall = walls.fold(0, u64::saturating_add);
        (wall > 0).then_some((self.record.own_cost, wall))
    }

    /// Returns the windows for which the recorder's time was measured: not those that the flight recorder kept.
    fn own_windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| !window.past)
    }
}
