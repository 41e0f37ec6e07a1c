//! The state of the GPUs that a process uses, inside windows: clocks and what limits them, energy, and other processes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{GpuOwner, Metric};

use super::inside::{self, WindowSpans};
use super::samples::RecordedSamples;
use super::{MeasuredProcess, SampledRecord};
use crate::events::spans::{self, Span};
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;

/// Share of the maximum SM clock, as a fraction, below which the clock counts as lowered.
const FULL_CLOCK: f64 = 0.95;
/// Share of the SM clock that a GPU reaches later in a window, as a fraction. If the clock at the start of the window
/// is below this share, the clock counts as not yet risen.
const RISEN_CLOCK: f64 = 0.9;
/// Minimum number of clock samples after the clock has risen, for the conclusion that the clock was low before.
const MIN_RISEN: usize = 3;
/// Minimum number of slow iterations, and minimum number of other iterations, for an estimate of
/// the time that the slow iterations lose.
const MIN_COMPARED: usize = 8;

/// NVML's bit for a clock that is lowered because the GPU has reached its power limit.
const POWER_CAP: u64 = 0x04;
/// NVML's bits for clocks that heat or the hardware lowers. A healthy GPU at full load has none of them.
const FAULTS: u64 = 0x08 | 0x20 | 0x40 | 0x80;
/// The bits by which NVML states that power, heat or the hardware limits the clocks, each with its
/// meaning in words.
const LIMITS: [(u64, &str); 5] = [
    (POWER_CAP, "power (software power cap)"),
    (0x08, "hardware slowdown"),
    (0x20, "heat (software thermal slowdown)"),
    (0x40, "heat (hardware thermal slowdown)"),
    (0x80, "power (hardware power brake)"),
];

/// Fraction of the board's default power limit below which the power limit in force counts as lowered.
const LOWERED_LIMIT: f64 = 0.99;

/// The power limit of a GPU, in watts.
#[derive(Clone, Copy, PartialEq, Debug)]
struct PowerLimit {
    /// The limit that the driver enforces.
    enforced: f64,
    /// The board's default limit; `None` if it is not known.
    default: Option<f64>,
}

impl PowerLimit {
    /// Parses the text for a GPU in a record, such as `0 400000 700000`: the GPU's number, the enforced limit and the
    /// default limit. The limits are in milliwatts, and a default of `-` is not known. Returns `None` if the text is
    /// about another GPU than `device`, or has another form.
    fn parse(text: &str, device: u8) -> Option<Self> {
        let mut words = text.split(' ');
        let of: u8 = words.next()?.parse().ok()?;
        let mut watts = || {
            let milliwatts: u64 = words.next()?.parse().ok()?;
            Some(milliwatts as f64 / 1000.0)
        };
        let (enforced, default) = (watts()?, watts());
        (of == device).then_some(Self { enforced, default })
    }
}

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
    /// The power limit that the driver enforces; `null` if it is not known.
    #[serde(rename = "power_limit_w")]
    #[schemars(extend("unit" = "watts"))]
    pub power_limit: Option<f64>,
    /// The board's default power limit; `null` if it is not known.
    #[serde(rename = "default_power_limit_w")]
    #[schemars(extend("unit" = "watts"))]
    pub default_power_limit: Option<f64>,
    /// The time in which heat, the hardware or a power limit lowered the SM clock; `null` if the reasons for the clocks
    /// are not known. A power limit counts if it is below the board's default, or if one of the two is not known.
    pub throttled: Option<Throttled>,
    /// The time in which the GPU's power limit lowered the SM clock, if that limit is the board's default or higher;
    /// `null` if the reasons for the clocks are not known.
    pub power_limited: Option<Throttled>,
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
    /// The other processes that used the GPU, of this run and of other runs; `null` if the processes on the GPU were
    /// not listed, or if the driver lists them by process IDs that cannot be compared with those of the run.
    pub others: Option<Vec<OtherProcess>>,
    /// The part of the iterations' time that was lost to other busy processes; `null` if it is not known.
    pub others_cost: Option<f64>,
    /// True if processes of the same run used the GPU, and it is not known if this process is one of them. They are
    /// then not among `others`.
    #[serde(skip)]
    pub has_unclear_processes: bool,
}

/// A time in which the SM clock was lowered for certain reasons.
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

/// Another process that used the GPU.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct OtherProcess {
    /// The process ID; `null` if the driver lists it by a number of another PID namespace.
    pub pid: Option<u32>,
    /// The name of the process; `null` if it could not be read.
    pub name: Option<String>,
    /// True if the process belongs to the same run, false if it belongs to another run.
    pub same_run: bool,
    /// The largest share of the SMs' time that the process had, as a part of 1; `null` if it is not known.
    pub sm_share: Option<f64>,
    /// The mean share of the SMs' time that the process had, as a part of 1; `null` if it is not known.
    pub mean_sm_share: Option<f64>,
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
    /// Returns the bits of [`LIMITS`] that lower the clock; 0 if the clock is not lowered.
    fn limits(&self) -> u64 {
        let is_low =
            matches!((self.clock, self.max), (Some(clock), Some(max)) if clock < max * FULL_CLOCK);
        match self.reasons {
            Some(reasons) if is_low => reasons & (POWER_CAP | FAULTS),
            _ => 0,
        }
    }
}

impl GpuState {
    /// Returns true if at least the clocks, the energy or the processes of the GPU are known.
    pub(crate) const fn is_known(&self) -> bool {
        self.samples > 0 || self.energy.is_some() || self.others.is_some()
    }

    /// Returns true if the GPU's power limit is below the board's default; `None` if one of the two is not known.
    pub(crate) fn is_limit_lowered(&self) -> Option<bool> {
        let (limit, default) = (self.power_limit?, self.default_power_limit?);
        Some(limit < default * LOWERED_LIMIT)
    }

    /// Returns the GPU's power limit and the board's default in watts, if the limit is below the default.
    pub(crate) fn lowered_limit(&self) -> Option<(f64, f64)> {
        let limits = (self.power_limit?, self.default_power_limit?);
        self.is_limit_lowered()?.then_some(limits)
    }
}

/// Returns the state of a GPU inside the windows of a process, computed from the samples of a record.
pub(crate) fn state(device: u8, of: MeasuredProcess<'_>, record: &SampledRecord<'_>) -> GpuState {
    let mut limits = record.power_limits.iter();
    let limit = limits.find_map(|text| PowerLimit::parse(text, device));
    let mut state = GpuState {
        device,
        power_limit: limit.map(|limit| limit.enforced),
        default_power_limit: limit.and_then(|limit| limit.default),
        ..GpuState::default()
    };
    let (record, windows) = (record.samples, of.windows);
    let spans = inside::spans(windows);
    let clocks = clocks(device, record, &spans);
    // Running at the board's default power limit is normal for a busy GPU. Running at a lowered limit is a fault.
    let faults = match state.is_limit_lowered() {
        Some(false) => FAULTS,
        Some(true) | None => FAULTS | POWER_CAP,
    };
    state.throttled = lowered(&clocks, windows, faults, |limits| limits & faults != 0);
    state.power_limited = lowered(&clocks, windows, POWER_CAP, |limits| {
        limits & faults == 0 && limits & POWER_CAP != 0
    });
    let iterations = || windows.iter().flat_map(Window::qualified);
    let energy = energy(device, record, &spans);
    let steps = iterations().count();
    let tokens = iterations().map(|one| one.batch.map(|batch| u64::from(batch.tokens)));
    let tokens = tokens.sum::<Option<u64>>().filter(|tokens| *tokens > 0);
    let others = others(device, of.pid, record, &spans);
    let has_clock = |clocks: &&ClockSample| clocks.clock.is_some();
    GpuState {
        samples: clocks.iter().filter(has_clock).count() as u64,
        clock: mean_clock(clocks.iter()),
        max_clock: clocks
            .iter()
            .filter_map(|clocks| clocks.max)
            .reduce(f64::max),
        low_clock: low_clock(&clocks, windows),
        energy,
        per_step: energy
            .filter(|_| steps > 0)
            .map(|energy| energy / steps as f64),
        per_token: energy
            .zip(tokens)
            .map(|(energy, tokens)| energy / tokens as f64),
        others: others.processes,
        others_cost: cost(windows, |at| Some(spans::contain(&others.busy, at))),
        has_unclear_processes: others.are_unclear,
        ..state
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

/// Returns the time in which the clock was lowered for certain reasons; `None` if the record does not contain the
/// reasons for the clocks. `is_lowered` receives the bits of [`LIMITS`] that lowered the clock in a sample, and returns
/// true if the sample counts. `bits` are the bits of the reasons that the result may name.
fn lowered(
    clocks: &[ClockSample],
    windows: &[Window],
    bits: u64,
    is_lowered: impl Fn(u64) -> bool,
) -> Option<Throttled> {
    let known = || {
        clocks
            .iter()
            .filter(|one| one.reasons.is_some() && one.clock.is_some() && one.max.is_some())
    };
    let all: u64 = known().map(|one| one.inside).sum();
    if all == 0 {
        return None;
    }
    let low = || known().filter(|one| is_lowered(one.limits()));
    let found = low().fold(0, |all, one| all | one.limits()) & bits;
    let reasons = LIMITS.iter().filter(|(bit, _)| found & bit != 0);
    let at = |moment: u64| {
        let next = clocks.partition_point(|one| one.end <= moment);
        let one = clocks.get(next).filter(|one| one.start <= moment)?;
        one.reasons
            .filter(|_| one.clock.is_some() && one.max.is_some())?;
        let is_full = one.clock >= one.max.map(|max| max * FULL_CLOCK);
        is_lowered(one.limits())
            .then_some(true)
            .or(is_full.then_some(false))
    };
    Some(Throttled {
        reasons: reasons.map(|(_, name)| *name).collect(),
        share: low().map(|one| one.inside).sum::<u64>() as f64 / all as f64,
        clock: mean_clock(low()),
        other_clock: mean_clock(known().filter(|one| !is_lowered(one.limits()))),
        cost: cost(windows, at),
    })
}

/// Finds windows at whose start the SM clock was low, although nothing limited it, and in which the clock rose later.
/// Returns the one with the longest time from its start until the clock had risen; `None` if there is no such
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
            |one: &&&ClockSample| one.limits() == 0 && one.clock < Some(later * RISEN_CLOCK);
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

/// The other processes on a GPU.
struct OtherUse {
    /// `None` if it is not known which processes use the GPU, or to which run they belong.
    processes: Option<Vec<OtherProcess>>,
    /// The times in which other processes are known to be busy.
    busy: Vec<Span>,
    /// True if processes of the same run use the GPU, and it is not known if the profiled process is one of them.
    are_unclear: bool,
}

/// Returns the processes other than the profiled process that use a GPU inside windows. `own` is the process ID of the
/// profiled process.
fn others(device: u8, own: u32, record: &RecordedSamples, spans: &WindowSpans) -> OtherUse {
    let of_gpu = || record.processes.iter().filter(|one| one.device == device);
    // If the driver does not list the profiled process by its ID, this process either does not use the GPU, or has
    // another ID in the PID namespace of the driver's list. In the second case, one of the listed processes of the run
    // is the profiled process.
    let is_own_listed = of_gpu().any(|one| one.owner == GpuOwner::Run && one.pid == own);
    let mut found: BTreeMap<u32, OtherProcess> = BTreeMap::new();
    let (mut unknown, mut sampled) = (BTreeMap::<u64, u32>::new(), BTreeMap::new());
    let (mut are_unclear, mut busy) = (false, Vec::new());
    for one in of_gpu() {
        let inside = spans.overlap(one.start, one.end());
        if inside == 0 {
            continue;
        }
        sampled.insert(one.start, inside);
        match one.owner {
            GpuOwner::Run if one.pid == own => continue,
            GpuOwner::Run if !is_own_listed => {
                are_unclear = true;
                continue;
            }
            GpuOwner::Unknown => {
                *unknown.entry(one.start).or_default() += 1;
                continue;
            }
            GpuOwner::Run | GpuOwner::Other => (),
        }
        let share = one.sm.map(|sm| f64::from(sm) / 100.0);
        let other = found.entry(one.pid).or_insert_with(|| OtherProcess {
            pid: (one.pid > 0).then_some(one.pid),
            name: record.names.get(&one.pid).cloned(),
            same_run: one.owner == GpuOwner::Run,
            sm_share: None,
            mean_sm_share: None,
        });
        other.sm_share = other.sm_share.into_iter().chain(share).reduce(f64::max);
        if let Some(share) = share {
            // Until the division below, this is the sum of the shares of all samples, weighted by their lengths.
            *other.mean_sm_share.get_or_insert(0.0) += share * inside as f64;
        }
        if share > Some(0.0) {
            let (start, end) = (one.start, one.end());
            busy.push(Span { start, end });
        }
    }
    spans::join(&mut busy);
    let length: u64 = sampled.values().sum();
    for other in found.values_mut() {
        other.mean_sm_share = other.mean_sm_share.map(|sum| sum / length as f64);
    }
    // If only one process of an unknown owner is listed at a time, it is assumed to be the profiled process. If several
    // are listed at a time, some of them may belong to other runs.
    let has_unknown = found.is_empty() && unknown.values().any(|count| *count > 1);
    let is_known = !sampled.is_empty() && !has_unknown;
    OtherUse {
        processes: is_known.then(|| found.into_values().collect()),
        busy,
        are_unclear,
    }
}

/// Returns the fraction of the iterations' time that slow iterations lose compared with other iterations. `is_slow`
/// takes the middle of an iteration in nanoseconds. It returns true if the iteration is slow, and `None` if the
/// iteration is not compared. Iterations are compared only within a class: they have the same phase, and kernels were
/// recorded in all of them or in none. Returns `None` if no class has [`MIN_COMPARED`] slow and [`MIN_COMPARED`] other
/// iterations.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_power_limits_of_a_record() {
        let limit = |text| PowerLimit::parse(text, 1);
        let of = |enforced, default| Some(PowerLimit { enforced, default });
        assert_eq!(limit("1 400000 700000"), of(400.0, Some(700.0)));
        assert_eq!(limit("1 400500 -"), of(400.5, None));
        for bad in ["", "1", "0 400000 700000", "x 400000 700000", "1 - 700000"] {
            assert_eq!(limit(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_limit_is_lowered_if_it_is_below_the_default() {
        let lowered = |power_limit, default_power_limit| {
            let state = GpuState {
                power_limit,
                default_power_limit,
                ..GpuState::default()
            };
            state.lowered_limit()
        };
        let (low, full) = (Some(400.0), Some(700.0));
        assert_eq!(lowered(low, full), Some((400.0, 700.0)));
        for (limit, default) in [(full, full), (full, low), (low, None), (None, full)] {
            assert_eq!(lowered(limit, default), None);
        }
    }
}
