//! The samples that a record contains: of GPU metrics, of processes that use GPUs, and of the NUMA
//! nodes of threads.

use std::collections::BTreeMap;

use tllmprof_record::{Clock, Event, GpuOwner, Metric, NO_STRING, StringId, Strings, What};

/// Maximum number of samples of each kind to store. Further samples are only counted.
const MAX_SAMPLES: usize = 1 << 22;

/// A sample of a GPU metric, averaged over a short time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MetricSample {
    /// Start of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    /// Length of the sample, in microseconds.
    pub duration: u32,
    /// Value of the metric, in the metric's unit.
    pub value: f32,
    pub metric: Metric,
    pub device: u8,
}

impl MetricSample {
    /// Returns the end of the sample, in nanoseconds of `CLOCK_MONOTONIC`. A sample without a
    /// duration counts as 1 ns long.
    #[must_use]
    pub fn end(&self) -> u64 {
        end(self.start, self.duration)
    }
}

/// A sample of a process that uses a GPU: its use of the GPU during a short time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProcessSample {
    /// Start of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    /// Length of the sample, in microseconds.
    pub duration: u32,
    pub pid: u32,
    /// Share of the GPU's SM time that the process took, in percent; `None` if it is not known.
    pub sm: Option<u8>,
    pub owner: GpuOwner,
    pub device: u8,
}

impl ProcessSample {
    /// Returns the end of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn end(&self) -> u64 {
        end(self.start, self.duration)
    }
}

fn end(start: u64, micros: u32) -> u64 {
    start
        .saturating_add(u64::from(micros) * 1000)
        .max(start.saturating_add(1))
}

/// A sample of the NUMA node on which a thread runs. The thread is assumed to run on this node until the thread's next
/// sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ThreadOnNode {
    /// Time of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub from: u64,
    pub pid: u32,
    pub tid: u32,
    pub node: u16,
}

/// The samples that a record contains, at most `MAX_SAMPLES` of each kind, and the number of further samples, which
/// were dropped.
#[derive(Debug, Default)]
pub struct RecordedSamples {
    pub samples: Vec<MetricSample>,
    pub processes: Vec<ProcessSample>,
    pub threads: Vec<ThreadOnNode>,
    /// Names of the processes that use GPUs, by process ID.
    pub names: BTreeMap<u32, String>,
    pub left_out: u64,
    name_ids: BTreeMap<u32, StringId>,
}

impl RecordedSamples {
    /// Adds an event, if it is a sample of a GPU metric, of a process on a GPU, or of a thread's
    /// NUMA node.
    pub fn add(&mut self, clock: &Clock, event: &Event) {
        let start = clock.ns(event.start);
        let micros = || {
            let micros = clock.duration_ns(event.start, event.duration) / 1000;
            u32::try_from(micros).unwrap_or(u32::MAX)
        };
        let is_full = match event.what {
            What::GpuMetric {
                device,
                metric: Some(metric),
                thousandths,
            } => push(&mut self.samples, || MetricSample {
                start,
                duration: micros(),
                value: (thousandths as f64 / 1000.0) as f32,
                metric,
                device,
            }),
            What::GpuProcess {
                device,
                owner,
                sm,
                name,
                pid,
            } => {
                if name != NO_STRING {
                    self.name_ids.insert(pid, name);
                }
                push(&mut self.processes, || ProcessSample {
                    start,
                    duration: micros(),
                    pid,
                    sm,
                    owner,
                    device,
                })
            }
            What::ThreadNode { node, pid, tid } => push(&mut self.threads, || ThreadOnNode {
                from: start,
                pid,
                tid,
                node,
            }),
            _ => false,
        };
        self.left_out += u64::from(is_full);
    }

    /// Replaces the ids of process names by the names.
    pub fn finish(mut self, strings: &Strings) -> Self {
        let names = std::mem::take(&mut self.name_ids).into_iter();
        self.names = names
            .map(|(pid, id)| (pid, strings.get(id).to_owned()))
            .collect();
        self
    }
}

/// Adds a sample, unless [`MAX_SAMPLES`] is reached. Returns true if the sample was dropped.
fn push<T>(samples: &mut Vec<T>, sample: impl FnOnce() -> T) -> bool {
    let is_full = samples.len() == MAX_SAMPLES;
    if !is_full {
        samples.push(sample());
    }
    is_full
}
