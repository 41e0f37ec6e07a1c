//! An iteration, and its measurements.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::Batch;

use super::batch::{InBatch, write_batch};

use crate::events::qualify::Unqualified;

/// Use of the machine by the iteration's thread. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Time on a processor, and the part of it in the kernel.
    pub ran: u64,
    pub in_kernel: u64,
    /// Time in which it was ready to run but had no processor.
    pub delayed: u64,
    /// Number of times that its processor was given to another thread.
    pub preempted: u32,
    /// Number of page faults, and number of those that read a disk.
    pub faults: u32,
    pub disk_faults: u32,
    /// Time on a processor in some of its waits for the GPU, and total time of these waits.
    pub ran_in_waits: u64,
    pub waits: u64,
}

impl Used {
    /// Adds the value of an event.
    pub fn add(&mut self, what: tllmprof_record::Used, ns: u64, count: u32) {
        use tllmprof_record::Used as What;
        match what {
            What::Ran => self.ran = ns,
            What::Kernel => {
                self.in_kernel = ns;
                self.faults = self.faults.saturating_add(count);
            }
            What::Delayed => (self.delayed, self.preempted) = (ns, count),
            What::Disk => {
                self.disk_faults = count;
                self.faults = self.faults.saturating_add(count);
            }
            What::Waits => {
                (self.ran_in_waits, self.waits) = (ns, u64::from(count).saturating_mul(1000));
            }
        }
    }

    /// Returns how much of a wait for the GPU the thread may have been off the processor.
    fn asleep_in(&self, wait: u64) -> u64 {
        match self.waits {
            // No wait was measured.
            0 => wait,
            waits => {
                let spins = self.ran_in_waits.min(waits);
                let asleep = u128::from(wait) * u128::from(waits - spins) / u128::from(waits);
                asleep as u64
            }
        }
    }
}

/// An iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct Iteration {
    /// Its number, counted from 0.
    pub n: u64,
    /// The start of the iteration.
    #[serde(rename = "start_ns")]
    pub start: u64,
    /// The time that it took.
    #[serde(rename = "dur_ns")]
    pub duration: u64,
    /// The time that the GPU was busy with its work; `null` if it was not measured.
    // If no event measured it in any iteration, this is the busy time by kernels.
    #[serde(rename = "gpu_ns")]
    pub gpu: Option<u64>,
    /// The ID of the thread that ended it.
    pub thread: u32,
    /// The number of launches of kernels and graphs during it, on all threads.
    #[schemars(extend("unit" = "launches"))]
    pub launches: u32,
    /// The number of CUDA calls during it, on all threads.
    #[schemars(extend("unit" = "calls"))]
    pub calls: u32,
    /// The time that its thread waited in CUDA calls for the GPU to work.
    #[serde(rename = "wait_ns")]
    pub wait: u64,
    /// The time that its thread was blocked waiting for requests: in a function in which a known engine waits for them,
    /// or in a call that waits for a GPU without work. It is part of `dur_ns`, but not of any percentile or finding.
    #[serde(rename = "idle_ns")]
    pub idle: u64,
    /// The time that its thread waited for the GIL.
    #[serde(rename = "gil_wait_ns")]
    pub gil_wait: u64,
    /// The time that garbage collections of Python took during it, on all threads.
    #[serde(rename = "gc_ns")]
    pub gc: u64,
    /// Use of the machine by its thread; `None` if it was not recorded.
    #[serde(flatten, serialize_with = "write_used")]
    #[schemars(with = "UsedView")]
    pub used: Option<Used>,
    /// The number of kernels that began during it; 0 if kernels were not recorded.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u32,
    /// The time in which at least one kernel or copy ran during it, on the device that was busy longest; `null` if
    /// kernels were not recorded. Recording kernels makes an iteration longer.
    #[serde(rename = "gpu_busy_ns")]
    pub gpu_busy: Option<u64>,
    /// The contents of its batch, by the arguments of the engine's step function; `null` if they are not known.
    #[serde(serialize_with = "write_batch")]
    #[schemars(with = "Option<InBatch>")]
    pub batch: Option<Batch>,
    /// True if figures of windows include it. `unqualified` lists the iterations that they do not include.
    // The reason why figures do not include it.
    #[serde(rename = "qualifies", serialize_with = "write_qualifies")]
    #[schemars(with = "bool")]
    pub unqualified: Option<Unqualified>,
    /// True if something other than its own end ended it.
    pub cut: bool,
    /// Time of launches.
    #[serde(skip)]
    pub launching: u64,
    /// Number of those calls that begin or end a capture, or that a capture takes up.
    #[serde(skip)]
    pub captures: u32,
    /// Row of the call that waited for the GPU and after which its thread launched more work.
    #[serde(skip)]
    pub launched_after: Option<u8>,
}

/// Use of the machine by a thread in an iteration, as written to JSON.
#[derive(Default, Serialize, JsonSchema)]
struct UsedView {
    /// The time that its thread was on a processor; `null` if it is not known.
    processor_ns: Option<u64>,
    /// The time that its thread was ready to run but had no processor, because its processor was given to another
    /// thread; `null` if it is not known.
    delayed_ns: Option<u64>,
    /// The number of page faults of its thread, including those of up to seven earlier iterations that took no longer
    /// than others and in which the thread was on a processor; `null` if it is not known.
    #[schemars(extend("unit" = "page faults"))]
    page_faults: Option<u32>,
}

fn write_used<S: Serializer>(used: &Option<Used>, serializer: S) -> Result<S::Ok, S::Error> {
    let view = used.map_or_else(UsedView::default, |used| UsedView {
        processor_ns: Some(used.ran),
        delayed_ns: Some(used.delayed),
        page_faults: Some(used.faults),
    });
    view.serialize(serializer)
}

fn write_qualifies<S: Serializer>(
    unqualified: &Option<Unqualified>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    unqualified.is_none().serialize(serializer)
}

impl Iteration {
    /// Returns the time that it took without waiting for requests, in nanoseconds.
    pub const fn busy(&self) -> u64 {
        self.duration.saturating_sub(self.idle)
    }

    /// Returns the time that its thread was certainly asleep or blocked, without waits for the GPU, the GIL or
    /// requests.
    pub fn blocked(&self) -> u64 {
        let waits = self.gil_wait.saturating_add(self.idle);
        self.used.map_or(0, |used| {
            let waits = waits.saturating_add(used.asleep_in(self.wait));
            let accounted = used.ran.saturating_add(used.delayed).saturating_add(waits);
            self.duration.saturating_sub(accounted)
        })
    }

    /// Returns the longest time that its thread may have been asleep or blocked outside such waits.
    pub fn blocked_at_most(&self) -> u64 {
        let waits = self.gil_wait.saturating_add(self.idle);
        let code = self
            .duration
            .saturating_sub(waits.saturating_add(self.wait));
        self.used.map_or(code, |used| {
            let spun = match used.waits {
                0 => self.wait,
                _ => self.wait.saturating_sub(used.asleep_in(self.wait)),
            };
            code.saturating_sub(used.ran.saturating_sub(spun))
        })
    }

    /// Returns the time that its thread was ready to run but had no processor.
    pub fn delayed(&self) -> u64 {
        self.used.map_or(0, |used| used.delayed.min(self.duration))
    }

    /// Returns the part of that time outside waits for the GPU, the GIL and requests: the time that its code did not
    /// run, if the time that it ran in waits is known; otherwise at least the proportional part.
    pub fn delayed_in_code(&self) -> u64 {
        let waits = self.wait.saturating_add(self.gil_wait);
        let waits = waits.saturating_add(self.idle).min(self.duration);
        let code = self.duration - waits;
        self.used.map_or(0, |used| {
            let spun = self.wait.saturating_sub(used.asleep_in(self.wait));
            let ran = used.ran.saturating_sub(spun);
            let off = code.saturating_sub(ran.saturating_add(self.blocked()));
            let equal = match used.waits {
                0 => part(self.delayed(), code, self.duration),
                _ => 0,
            };
            self.delayed().min(off.max(equal))
        })
    }

    /// Returns the end of the iteration.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    /// Returns true if it counts in figures of windows.
    #[must_use]
    pub const fn qualifies(&self) -> bool {
        self.unqualified.is_none()
    }
}

/// Returns the same fraction of `time` as `part` is of `whole`.
pub const fn part(time: u64, part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => (time as u128 * part as u128 / whole as u128) as u64,
    }
}

/// Method of measuring GPU time, and the iterations in which it was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub enum GpuFrom {
    /// CUDA events around the work of the iterations in which no kernels were recorded.
    #[serde(rename = "events")]
    Plain,
    /// CUDA events in iterations that were made longer by recording kernels. There are no others.
    #[serde(rename = "events in kernel windows")]
    Stretched,
    /// The kernels themselves, in iterations that were made longer by recording them.
    #[serde(rename = "kernels")]
    Kernels,
}

impl GpuFrom {
    /// Returns the source of the GPU time of some iterations.
    pub fn choose<'a, I: Iterator<Item = &'a Iteration>>(all: impl Fn() -> I) -> Self {
        let measured = || all().filter(|iteration| iteration.gpu.is_some());
        if measured().any(|iteration| iteration.gpu_busy.is_none()) {
            Self::Plain
        } else if measured().any(|iteration| iteration.gpu != iteration.gpu_busy) {
            Self::Stretched
        } else {
            Self::Kernels
        }
    }

    /// Returns true if GPU time was measured at all. If kernels are missing, the GPU seems to be idle.
    pub fn is_measured<'a>(self, mut all: impl Iterator<Item = &'a Iteration>) -> bool {
        self != Self::Kernels
            || all.any(|iteration| iteration.gpu_busy.is_some_and(|busy| busy > 0))
    }

    /// Returns the GPU time of an iteration if it was measured in this way.
    pub const fn time(self, iteration: &Iteration) -> Option<u64> {
        match (self, iteration.gpu_busy) {
            (Self::Plain, Some(_)) => None,
            (Self::Plain | Self::Stretched, _) => iteration.gpu,
            (Self::Kernels, busy) => busy,
        }
    }
}

/// Number of kernels that began in an iteration, and GPU busy time if kernels were recorded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InKernels {
    pub kernels: u32,
    pub busy: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_sleep_in_code_is_what_it_did_not_run() {
        let at_most = |ran, ran_in_waits, waits| {
            let used = Used {
                ran,
                ran_in_waits,
                waits,
                ..Used::default()
            };
            let iteration = Iteration {
                duration: 20_000,
                wait: 8_000,
                idle: 1_000,
                gil_wait: 1_000,
                used: Some(used),
                ..Iteration::default()
            };
            iteration.blocked_at_most()
        };
        // The waits sleep, spin, or were not measured.
        assert_eq!(at_most(4_000, 0, 1_000), 6_000);
        assert_eq!(at_most(9_000, 1_000, 1_000), 9_000);
        assert_eq!(at_most(4_000, 0, 0), 10_000);
        assert_eq!(at_most(9_000, 0, 0), 9_000);
        let unknown = Iteration {
            duration: 20_000,
            wait: 8_000,
            ..Iteration::default()
        };
        assert_eq!(unknown.blocked_at_most(), 12_000);
    }

    #[test]
    fn waiting_for_a_processor_is_divided_by_what_the_code_ran() {
        // 10 ms are code, and 10 ms are waiting for the GPU.
        let in_code = |ran, delayed, ran_in_waits, waits| {
            let used = Used {
                ran,
                delayed,
                ran_in_waits,
                waits,
                ..Used::default()
            };
            let iteration = Iteration {
                duration: 20_000,
                wait: 10_000,
                used: Some(used),
                ..Iteration::default()
            };
            assert!(iteration.blocked() <= iteration.blocked_at_most());
            (iteration.delayed_in_code(), iteration.blocked())
        };
        // The wait sleeps. The code waited for a processor for the time that it did not run. The rest of the delay came
        // at the end of the sleep.
        assert_eq!(in_code(4_000, 6_000, 0, 1_000), (6_000, 0));
        assert_eq!(in_code(4_000, 9_000, 0, 1_000), (6_000, 0));
        // The wait spins, and it was without a processor for as long as the code was.
        assert_eq!(in_code(10_000, 10_000, 500, 1_000), (5_000, 0));
        assert_eq!(in_code(20_000, 0, 1_000, 1_000), (0, 0));
        // A sleep in the code is not a wait for a processor.
        assert_eq!(in_code(4_000, 1_000, 0, 1_000), (1_000, 5_000));
        // It is not known whether the wait sleeps. The delay is divided in proportion, and is at least the time that
        // the code did not run.
        assert_eq!(in_code(10_000, 10_000, 0, 0), (5_000, 0));
        assert_eq!(in_code(2_000, 8_000, 0, 0), (8_000, 0));
    }
}
