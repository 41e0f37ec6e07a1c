//! The state of the GPUs that a process uses, inside windows: clocks and what limits them, energy, and other processes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{GpuOwner, Metric};

use super::inside::{self, WindowSpans};
use super::samples::RecordedSamples;
use crate::events::spans::{self, Span};
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;

/// Share of the maximum SM clock, as a fraction, below which the clock counts as lowered.
const FULL_CLOCK: f64 = 0.95;
/// Share of the SM clock that a GPU reaches later in a window, as a fraction. If the clock at the start of the window
/// is below this share, the clock counts as not yet risen.
const RISEN_CLOCK: f64 = 0.9;
/// Minimum number of clock samples after the clock has risen, for the conclusion that it was low
/// before.
const MIN_RISEN: usize = 3;
/// Minimum number of slow iterations, and minimum number of other iterations, for an estimate of
/// the time that the slow iterations lose.
const MIN_COMPARED: usize = 8;

/// The bits by which NVML states that power, heat or the hardware limits the clocks, each with its
/// meaning in words.
const LIMITS: [(u64, &str); 5] = [
    (0x04, "power (software power cap)"),
    (0x08, "hardware slowdown"),
    (0x20, "heat (software thermal slowdown)"),
    (0x40, "heat (hardware thermal slowdown)"),
    (0x80, "power (hardware power brake)"),
];

/// The state of a GPU that the process uses, inside windows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct GpuState {
    /// The number of the GPU, as the driver numbers GPUs.
    pub device: u8,
    /// The number of samples of the clocks.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
    /// The mean SM clock; `null` if it was not sampled.
    #[serde(rename = "sm_clock_mhz")]
    #[schemars(extend("unit" = "MHz"))]
    pub clock: Option<f64>,
    /// The highest SM clock that the GPU supports; `null` if it is not known.
    #[serde(rename = "max_sm_clock_mhz")]
    #[schemars(extend("unit" = "MHz"))]
    pub max_clock: Option<f64>,
    /// The time in which power, heat or the hardware lowered the SM clock; `null` if the reasons for the clocks are not
    /// known.
    pub throttled: Option<Throttled>,
    /// The time at the start of a window in which the SM clock had not risen yet; `null` if it had, or if that is not
    /// known.
    pub low_clock: Option<LowClock>,
    /// The energy that the GPU used; `null` if it is not known.
    #[serde(rename = "energy_j")]
    #[schemars(extend("unit" = "joules"))]
    pub energy: Option<f64>,
    /// The mean energy of an iteration; `null` if it is not known.
    #[serde(rename = "joules_per_step")]
    #[schemars(extend("unit" = "joules"))]
    pub per_step: Option<f64>,
    /// The mean energy of a token; `null` if it is not known, or if the batches are not known.
    #[serde(rename = "joules_per_token")]
    #[schemars(extend("unit" = "joules"))]
    pub per_token: Option<f64>,
    /// The processes of other runs that used the GPU; `null` if the processes on the GPU were not listed, or if the
    /// driver lists them by process IDs that cannot be compared with those of the run.
    pub others: Option<Vec<OtherProcess>>,
    /// The part of the iterations' time that was lost to busy processes of other runs; `null` if it is not known.
    pub others_cost: Option<f64>,
}

/// The time in which power, heat or the hardware lowered the SM clock.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct Throttled {
    /// The reasons why the SM clock was lowered, as NVML gives them.
    pub reasons: Vec<&'static str>,
    /// The share of the sampled time in which the SM clock was lowered, as a part of 1.
    pub share: f64,
    /// The mean SM clock while the clock was lowered; `null` if it was never lowered.
    #[serde(rename = "sm_clock_mhz")]
    #[schemars(extend("unit" = "MHz"))]
    pub clock: Option<f64>,
    /// The mean SM clock while the clock was not lowered; `null` if it was always lowered.
    #[serde(rename = "other_sm_clock_mhz")]
    #[schemars(extend("unit" = "MHz"))]
    pub other_clock: Option<f64>,
    /// The part of the iterations' time that the lowered clocks cost, compared with iterations at full clocks; `null`
    /// if there are too few iterations at lowered or at full clocks.
    pub cost: Option<f64>,
}

/// A time at the start of a window in which the SM clock was low, although nothing limited it. The clock rose later in
/// the window.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct LowClock {
    /// The time from the start of the window until the SM clock had risen. If several windows began with a low clock,
    /// the longest of these times.
    #[serde(rename = "duration_ns")]
    pub duration: u64,
    /// The mean SM clock before it had risen.
    #[serde(rename = "sm_clock_mhz")]
    #[schemars(extend("unit" = "MHz"))]
    pub clock: f64,
    /// The median SM clock after it had risen.
    #[serde(rename = "later_sm_clock_mhz")]
    #[schemars(extend("unit" = "MHz"))]
    pub later: f64,
    /// The part of the iterations' time that the low clock cost, compared with iterations after the clock had risen;
    /// `null` if there are too few iterations before or after that.
    pub cost: Option<f64>,
}

/// A process of another run that used the GPU.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct OtherProcess {
    /// The process ID; `null` if the driver lists it by a number of another PID namespace.
    pub pid: Option<u32>,
    /// The name of the process; `null` if it could not be read.
    pub name: Option<String>,
    /// The largest share of the SMs' time that the process had, as a part of 1; `null` if it is not known.
    pub sm_share: Option<f64>,
}

/// The SM clock of a GPU during one sample, with the maximum clock and the bits of NVML's reasons
/// for the clock.
#[derive(Clone, Copy, Default)]
struct ClockSample {
    start: u64,
    end: u64,
    /// Length of the part of the sample that lies in windows, in nanoseconds.
    inside: u64,
    clock: Option<f64>,
    max: Option<f64>,
    reasons: Option<u64>,
}

impl ClockSample {
    fn is_throttled(&self) -> bool {
        let has_reason = self
            .reasons
            .is_some_and(|reasons| LIMITS.iter().any(|(bit, _)| reasons & bit != 0));
        let is_low =
            matches!((self.clock, self.max), (Some(clock), Some(max)) if clock < max * FULL_CLOCK);
        has_reason && is_low
    }
}

impl GpuState {
    /// Returns true if at least the clocks, the energy or the processes of the GPU are known.
    pub(crate) const fn is_known(&self) -> bool {
        self.samples > 0 || self.energy.is_some() || self.others.is_some()
    }
}

/// Returns the state of a GPU inside windows, computed from the samples of a record.
pub(crate) fn state(device: u8, record: &RecordedSamples, windows: &[Window]) -> GpuState {
    let spans = inside::spans(windows);
    let clocks = clocks(device, record, &spans);
    let iterations = || windows.iter().flat_map(Window::qualified);
    let energy = energy(device, record, &spans);
    let steps = iterations().count();
    let tokens = iterations().map(|one| one.batch.map(|batch| u64::from(batch.tokens)));
    let tokens = tokens.sum::<Option<u64>>().filter(|tokens| *tokens > 0);
    let (others, busy_times) = others(device, record, &spans);
    let has_clock = |clocks: &&ClockSample| clocks.clock.is_some();
    GpuState {
        device,
        samples: clocks.iter().filter(has_clock).count() as u64,
        clock: mean_clock(clocks.iter()),
        max_clock: clocks
            .iter()
            .filter_map(|clocks| clocks.max)
            .reduce(f64::max),
        throttled: throttled(&clocks, windows),
        low_clock: low_clock(&clocks, windows),
        energy,
        per_step: energy
            .filter(|_| steps > 0)
            .map(|energy| energy / steps as f64),
        per_token: energy
            .zip(tokens)
            .map(|(energy, tokens)| energy / tokens as f64),
        others,
        others_cost: cost(windows, |at| Some(spans::contain(&busy_times, at))),
    }
}

fn clocks(device: u8, record: &RecordedSamples, spans: &WindowSpans) -> Vec<ClockSample> {
    let mut found: BTreeMap<u64, ClockSample> = BTreeMap::new();
    for sample in &record.samples {
        let inside = spans.overlap(sample.start, sample.end());
        if sample.device != device || inside == 0 {
            continue;
        }
        let value = f64::from(sample.value);
        let clocks = found.entry(sample.start).or_default();
        (clocks.start, clocks.end, clocks.inside) = (sample.start, sample.end(), inside);
        match sample.metric {
            Metric::SmClock => clocks.clock = Some(value),
            Metric::MaxSmClock => clocks.max = Some(value),
            Metric::ClockReasons => clocks.reasons = Some(value as u64),
            _ => (),
        }
    }
    found.into_values().collect()
}

fn mean_clock<'a>(clocks: impl Iterator<Item = &'a ClockSample>) -> Option<f64> {
    let known = clocks.filter_map(|clocks| Some((clocks.clock?, clocks.inside)));
    let (sum, all) = known.fold((0.0, 0), |(sum, all), (clock, inside)| {
        (sum + clock * inside as f64, all + inside)
    });
    (all > 0).then(|| sum / all as f64)
}

fn energy(device: u8, record: &RecordedSamples, spans: &WindowSpans) -> Option<f64> {
    let samples = record.samples.iter();
    let of = samples.filter(|sample| sample.device == device && sample.metric == Metric::Energy);
    // The energy is unknown if samples cover less than nine tenths of the windows' time.
    let (mut joules, mut covered) = (0.0, 0);
    for sample in of {
        let inside = spans.overlap(sample.start, sample.end());
        let length = sample.end() - sample.start;
        joules += f64::from(sample.value) * inside as f64 / length as f64;
        covered += inside;
    }
    let all = spans.length();
    (all > 0 && covered * 10 >= all * 9).then(|| joules * all as f64 / covered as f64)
}

fn throttled(clocks: &[ClockSample], windows: &[Window]) -> Option<Throttled> {
    let known = || {
        clocks
            .iter()
            .filter(|one| one.reasons.is_some() && one.clock.is_some() && one.max.is_some())
    };
    let all: u64 = known().map(|one| one.inside).sum();
    if all == 0 {
        return None;
    }
    let low = || known().filter(|one| one.is_throttled());
    let bits = low()
        .filter_map(|one| one.reasons)
        .fold(0, |all, one| all | one);
    let reasons = LIMITS.iter().filter(|(bit, _)| bits & bit != 0);
    let at = |moment: u64| {
        let next = clocks.partition_point(|one| one.end <= moment);
        let one = clocks.get(next).filter(|one| one.start <= moment)?;
        one.reasons
            .filter(|_| one.clock.is_some() && one.max.is_some())?;
        let is_full = one.clock >= one.max.map(|max| max * FULL_CLOCK);
        one.is_throttled()
            .then_some(true)
            .or(is_full.then_some(false))
    };
    Some(Throttled {
        reasons: reasons.map(|(_, name)| *name).collect(),
        share: low().map(|one| one.inside).sum::<u64>() as f64 / all as f64,
        clock: mean_clock(low()),
        other_clock: mean_clock(known().filter(|one| !one.is_throttled())),
        cost: cost(windows, at),
    })
}

/// Finds windows at whose start the SM clock was low, although nothing limited it, and in which the clock rose later.
/// Returns the longest time from the start of such a window until the clock had risen; `None` if there is no such
/// window.
fn low_clock(clocks: &[ClockSample], windows: &[Window]) -> Option<LowClock> {
    let of = |window: &Window| {
        let (from, until) = window.span();
        let within = clocks
            .iter()
            .filter(|one| one.end > from && one.start < until && one.clock.is_some());
        let within: Vec<_> = within.collect();
        let later = within.get(within.len() / 2..)?;
        let later = Quantiles::from_values(
            later
                .iter()
                .filter_map(|one| one.clock)
                .map(|mhz| mhz as u64),
        )?;
        let later = later.p50 as f64;
        let is_low =
            |one: &&&ClockSample| !one.is_throttled() && one.clock < Some(later * RISEN_CLOCK);
        let low: Vec<_> = within.iter().take_while(is_low).copied().collect();
        let end = low.last()?.end.min(until);
        if within.len() - low.len() < MIN_RISEN {
            return None;
        }
        let at = |moment: u64| (from..until).contains(&moment).then_some(moment < end);
        Some(LowClock {
            duration: end.saturating_sub(from),
            clock: mean_clock(low.into_iter())?,
            later,
            cost: cost(windows, at),
        })
    };
    windows.iter().filter_map(of).max_by_key(|low| low.duration)
}

/// Processes of other runs on a GPU, and the times in which they are known to be busy. The list of processes is `None`
/// if it is not known which processes use the GPU, or to which run they belong.
type OtherUse = (Option<Vec<OtherProcess>>, Vec<Span>);

fn others(device: u8, record: &RecordedSamples, spans: &WindowSpans) -> OtherUse {
    let mut found: BTreeMap<u32, OtherProcess> = BTreeMap::new();
    let (mut is_listed, mut unknown, mut busy) = (false, BTreeMap::<u64, u32>::new(), Vec::new());
    for one in record.processes.iter().filter(|one| one.device == device) {
        if spans.overlap(one.start, one.end()) == 0 {
            continue;
        }
        is_listed = true;
        match one.owner {
            GpuOwner::Run => continue,
            GpuOwner::Unknown => {
                *unknown.entry(one.start).or_default() += 1;
                continue;
            }
            GpuOwner::Other => (),
        }
        let share = one.sm.map(|sm| f64::from(sm) / 100.0);
        let other = found.entry(one.pid).or_insert_with(|| OtherProcess {
            pid: (one.pid > 0).then_some(one.pid),
            name: record.names.get(&one.pid).cloned(),
            sm_share: None,
        });
        other.sm_share = other.sm_share.into_iter().chain(share).reduce(f64::max);
        if share > Some(0.0) {
            let (start, end) = (one.start, one.end());
            busy.push(Span { start, end });
        }
    }
    spans::join(&mut busy);
    // If at most one process of an unknown owner is listed at a time, that process is regarded as the process of the
    // run itself. If several such processes are listed, some of them may belong to other runs.
    let are_unclear = found.is_empty() && unknown.values().any(|count| *count > 1);
    let others = (is_listed && !are_unclear).then(|| found.into_values().collect());
    (others, busy)
}

/// Returns the fraction of the iterations' time that slow iterations lose compared with other
/// iterations. `is_slow` takes the middle of an iteration in nanoseconds and returns true if the iteration is
/// slow, or `None` if it is not compared. Only iterations of the same phase are compared, and
/// iterations with recorded kernels only with each other. Returns `None` if no such class has [`MIN_COMPARED`] slow and
/// [`MIN_COMPARED`] other iterations.
fn cost(windows: &[Window], is_slow: impl Fn(u64) -> Option<bool>) -> Option<f64> {
    let mut classes: BTreeMap<_, [Vec<u64>; 2]> = BTreeMap::new();
    let mut all = 0;
    for one in windows.iter().flat_map(Window::qualified) {
        all += one.busy();
        if let Some(is_slow) = is_slow(one.start + one.duration / 2) {
            let class = (
                one.gpu_busy.is_some(),
                one.batch.map(|batch| batch.phase().name()),
            );
            classes.entry(class).or_default()[usize::from(is_slow)].push(one.busy());
        }
    }
    let mut lost = None;
    for [usual, slow] in classes.into_values() {
        let count = slow.len();
        if usual.len() < MIN_COMPARED || count < MIN_COMPARED {
            continue;
        }
        let median = |times| Quantiles::from_values(times).map_or(0, |times| times.p50);
        let more = median(slow).saturating_sub(median(usual));
        lost = Some(lost.unwrap_or(0) + more * count as u64);
    }
    lost.filter(|_| all > 0)
        .map(|lost| (lost as f64 / all as f64).min(1.0))
}
