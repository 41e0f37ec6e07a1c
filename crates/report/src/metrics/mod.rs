//! GPU metrics inside windows, such as SM utilization or power, the state of the GPUs, and the NUMA nodes of threads.
//! The `tllmprof` command samples them while the program runs.

mod inside;
mod placement;
mod samples;
pub(crate) mod state;
pub(crate) mod text;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{GpuOwner, Metric};

use crate::events::window::Window;
use placement::Placement;
pub use samples::MetricSample;
pub(crate) use samples::RecordedSamples;
use state::GpuState;

/// GPU metrics of a process, such as SM utilization.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Metrics {
    /// GPU metrics inside windows, one row for each metric of each GPU.
    // [`Self::new`] computes this field from the samples in the process's own record. [`Self::attach`] computes it
    // again with the samples in the records of other processes, and also sets `state`, `unknown` and `placement`.
    #[serde(rename = "gpu_metrics")]
    pub sums: Vec<MetricSum>,
    /// The state of each GPU that the process uses, inside windows; empty if it was not sampled, or if it is not known
    /// which GPUs the process uses.
    #[serde(rename = "gpu_state")]
    pub state: Vec<GpuState>,
    /// The reason why the state of the GPUs is not known; `null` if the state is known.
    #[serde(rename = "gpu_state_unknown")]
    pub unknown: Option<String>,
    /// The NUMA nodes of the iterations' thread and of the GPUs; `null` if they are not known.
    pub placement: Option<Placement>,
    /// The samples in this record.
    #[serde(skip)]
    pub samples: RecordedSamples,
    /// The process ID in the record that contains the samples of the process's GPUs. `None` if it is not known which
    /// GPUs the process uses.
    #[serde(skip)]
    pub sampler: Option<u32>,
}

/// A record that contains samples of GPU metrics, possibly for other processes of the same run.
pub(crate) struct SampledRecord<'a> {
    /// Process ID of the command that wrote the record.
    pub pid: u32,
    pub run: &'a str,
    pub samples: &'a RecordedSamples,
    /// The NUMA nodes of the GPUs: one text for each GPU, in the form that `GpuNode::parse` reads.
    pub gpu_nodes: &'a [String],
    /// The power limits of the GPUs: one text for each GPU, in the form that `PowerLimit::parse` reads.
    pub power_limits: &'a [String],
    /// The reasons why some data, such as the clocks of a GPU, were not sampled.
    pub refused: &'a [String],
}

/// The process for which figures of GPUs are computed.
#[derive(Clone, Copy)]
pub(crate) struct MeasuredProcess<'a> {
    pub pid: u32,
    pub parent: u32,
    pub run: &'a str,
    pub windows: &'a [Window],
}

impl Metrics {
    /// Returns the metrics of a process from the samples in its own record.
    pub(crate) fn new(samples: RecordedSamples, windows: &[Window]) -> Self {
        Self {
            sums: inside::inside(samples.samples.iter(), windows),
            samples,
            ..Self::default()
        }
    }

    /// Computes the figures of a process from its own samples and those of other records on the
    /// same machine.
    pub(crate) fn attach(&mut self, of: MeasuredProcess<'_>, others: &[SampledRecord<'_>]) {
        let devices = devices(of, others);
        // Each record numbers the GPUs in its own way, so only the record with the process's GPUs is used if it is known.
        // Otherwise the records of the same run are used.
        let chosen = devices.as_ref().ok().map(|(record, _)| *record);
        self.sampler = chosen.map(|record| record.pid);
        let others = others.iter().filter(|one| match chosen {
            Some(chosen) => std::ptr::eq(*one, chosen),
            None => may_be_one_run(one.run, of.run),
        });
        let samples = others.flat_map(|one| &one.samples.samples);
        let samples = self.samples.samples.iter().chain(samples);
        self.sums = inside::inside(samples, of.windows);
        match devices {
            Ok((record, devices)) => {
                let states = devices
                    .iter()
                    .map(|device| state::state(*device, of, record));
                self.state = states.filter(GpuState::is_known).collect();
                self.placement = placement::find(of, &devices, record);
                let mut refused = record
                    .refused
                    .iter()
                    .filter(|line| line.starts_with("GPU "));
                let missing = || "no clocks of the GPU were sampled in the window".to_owned();
                self.unknown = (self.state.is_empty())
                    .then(|| refused.next().cloned().unwrap_or_else(missing));
            }
            Err(why) => self.unknown = Some(why.to_owned()),
        }
    }
}

/// Returns true if two records may belong to the same run, given their runs' identifiers. A record without an
/// identifier was made by another command than `tllmprof run`, and may belong to any run.
#[must_use]
pub fn may_be_one_run(one: &str, other: &str) -> bool {
    one == other || one.is_empty() || other.is_empty()
}

/// Returns the record that contains the samples of a process's GPUs, and the numbers of these GPUs in that record. Each
/// record numbers the GPUs as the program that sampled them sees them, so only one record is used. If the GPUs are not
/// known, returns the reason in words.
fn devices<'a, 'b>(
    of: MeasuredProcess<'_>,
    records: &'a [SampledRecord<'b>],
) -> Result<(&'a SampledRecord<'b>, Vec<u8>), &'static str> {
    let sorted = |devices: &mut dyn Iterator<Item = u8>| {
        let devices: BTreeSet<_> = devices.collect();
        devices.into_iter().collect::<Vec<_>>()
    };
    let records: Vec<_> = records.iter().filter(|one| one.run == of.run).collect();
    for record in &records {
        let processes = record.samples.processes.iter();
        let own = processes.filter(|one| one.pid == of.pid && one.owner == GpuOwner::Run);
        let own = sorted(&mut own.map(|one| one.device));
        if !own.is_empty() {
            return Ok((record, own));
        }
    }
    let near = records.iter().find(|one| one.pid == of.parent);
    let only = match &records[..] {
        [] => return Err("the state of the GPUs was not sampled"),
        [one] => Some(one),
        _ => None,
    };
    let record = near.or(only);
    let devices = record.map(|one| sorted(&mut one.samples.samples.iter().map(|one| one.device)));
    match (record, devices) {
        (Some(record), Some(devices)) if devices.len() == 1 => Ok((record, devices)),
        _ => Err(
            "it is not known which GPU the process uses: the driver lists no process by its number \
                  (in a container it uses the numbers of the host)",
        ),
    }
}

/// One metric of one GPU, inside windows.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Metric")]
pub struct MetricSum {
    /// The number of the GPU, as the driver numbers GPUs.
    pub device: u8,
    /// The name of the metric, such as `SM busy`.
    #[serde(serialize_with = "write_name")]
    #[schemars(with = "String")]
    pub metric: Metric,
    /// The unit of `mean` and `max`.
    pub unit: &'static str,
    /// The mean of the metric over time.
    #[schemars(extend("unit" = "`unit`"))]
    pub mean: f64,
    /// The largest sample of the metric.
    #[schemars(extend("unit" = "`unit`"))]
    pub max: f64,
    /// The number of samples of the metric.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
}

fn write_name<S: Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(metric.name())
}
