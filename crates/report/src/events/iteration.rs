//! An iteration, and what happened in it.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::Batch;

use super::batch::{InBatch, write_batch};

use crate::events::qualify::Unqualified;

/// What its thread used of the machine in an iteration. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// On a processor, and in the kernel of that.
    pub ran: u64,
    pub in_kernel: u64,
    /// Without a processor though it could have run.
    pub delayed: u64,
    /// How often another thread was given its processor.
    pub preempted: u32,
    /// Page faults, and those among them that read a disk.
    pub faults: u32,
    pub disk_faults: u32,
    /// Of some of its waits for the GPU: on a processor, and in all.
    pub ran_in_waits: u64,
    pub waits: u64,
}

impl Used {
    /// Adds what an event says.
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

    /// How much of such a wait it may have been off the processor.
    fn asleep_in(&self, wait: u64) -> u64 {
        match self.waits {
            // Nothing is known of them.
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
    /// When it began.
    #[serde(rename = "start_ns")]
    pub start: u64,
    /// How long it took.
    #[serde(rename = "dur_ns")]
    pub duration: u64,
    /// How long the GPU was busy for it; `null`: not measured.
    // Where no event measured it in any iteration, what kernels say.
    #[serde(rename = "gpu_ns")]
    pub gpu: Option<u64>,
    /// The ID of the thread that ended it.
    pub thread: u32,
    /// Launches of kernels and graphs during it, on all threads.
    #[schemars(extend("unit" = "launches"))]
    pub launches: u32,
    /// CUDA calls during it, on all threads.
    #[schemars(extend("unit" = "calls"))]
    pub calls: u32,
    /// How long its thread waited in CUDA calls for the GPU to work.
    #[serde(rename = "wait_ns")]
    pub wait: u64,
    /// How long its thread was blocked waiting for requests: in a function in which a known engine does, or in a call that
    /// waits for a GPU that was given nothing to do. It is part of `dur_ns`, and of no percentile and no finding.
    #[serde(rename = "idle_ns")]
    pub idle: u64,
    /// How long its thread waited for the GIL.
    #[serde(rename = "gil_wait_ns")]
    pub gil_wait: u64,
    /// How long garbage collections of Python took during it, on all threads.
    #[serde(rename = "gc_ns")]
    pub gc: u64,
    /// What its thread used of the machine; `None` where that was not recorded.
    #[serde(flatten, serialize_with = "write_used")]
    #[schemars(with = "UsedView")]
    pub used: Option<Used>,
    /// Kernels that began during it; 0 where kernels were not recorded.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u32,
    /// How long at least one kernel or copy ran during it, of the device where that is longest; `null`: kernels were
    /// not recorded. Recording them makes an iteration longer.
    #[serde(rename = "gpu_busy_ns")]
    pub gpu_busy: Option<u64>,
    /// What was in its batch, by the arguments of the engine's step function; `null`: not known.
    #[serde(serialize_with = "write_batch")]
    #[schemars(with = "Option<InBatch>")]
    pub batch: Option<Batch>,
    /// Whether figures of windows include it: `unqualified` says which ones they do not.
    // The reason why they do not.
    #[serde(rename = "qualifies", serialize_with = "write_qualifies")]
    #[schemars(with = "bool")]
    pub unqualified: Option<Unqualified>,
    /// Whether something other than its own end ended it.
    pub cut: bool,
    /// What launches took.
    #[serde(skip)]
    pub launching: u64,
    /// Calls among those that capture a stream, or that a capture takes up.
    #[serde(skip)]
    pub captures: u32,
    /// The wait for the GPU, by its row, after which its thread launched more work.
    #[serde(skip)]
    pub launched_after: Option<u8>,
}

/// What of the machine a thread used in an iteration, as far as JSON has it.
#[derive(Default, Serialize, JsonSchema)]
struct UsedView {
    /// How long its thread was on a processor; `null`: not known.
    processor_ns: Option<u64>,
    /// How long its thread could have run and had no processor, where another thread was given its own; `null`: not known.
    delayed_ns: Option<u64>,
    /// Page faults of its thread, and those of up to seven iterations before it that took no longer than others, in which the
    /// thread was on a processor; `null`: not known.
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
    /// How long it took without waiting for requests.
    pub const fn busy(&self) -> u64 {
        self.duration.saturating_sub(self.idle)
    }

    /// How long its thread was asleep or blocked for certain, without waiting for the GPU, the GIL or requests.
    pub fn blocked(&self) -> u64 {
        let waits = self.gil_wait.saturating_add(self.idle);
        self.used.map_or(0, |used| {
            let waits = waits.saturating_add(used.asleep_in(self.wait));
            let accounted = used.ran.saturating_add(used.delayed).saturating_add(waits);
            self.duration.saturating_sub(accounted)
        })
    }

    /// How long its thread had no processor though it could have run.
    pub fn delayed(&self) -> u64 {
        self.used.map_or(0, |used| used.delayed.min(self.duration))
    }

    /// How much of that was beside waits for the GPU, the GIL and requests: what its code did not run, where what it ran
    /// in waits is known; else no less than in equal parts of all.
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

    /// When it ended.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    /// Whether it counts in figures of windows.
    #[must_use]
    pub const fn qualifies(&self) -> bool {
        self.unqualified.is_none()
    }
}

/// So much of `time` as `part` is of `whole`.
pub const fn part(time: u64, part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => (time as u128 * part as u128 / whole as u128) as u64,
    }
}

/// How GPU time was measured, and in which iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub enum GpuFrom {
    /// By CUDA events around the work of the iterations in which no kernels were recorded.
    #[serde(rename = "events")]
    Plain,
    /// By CUDA events in iterations that recording kernels made longer: there are no others.
    #[serde(rename = "events in kernel windows")]
    Stretched,
    /// By the kernels themselves, in iterations that recording them made longer.
    #[serde(rename = "kernels")]
    Kernels,
}

impl GpuFrom {
    /// Where the GPU time of some iterations comes from.
    pub fn of<'a, I: Iterator<Item = &'a Iteration>>(all: impl Fn() -> I) -> Self {
        let measured = || all().filter(|iteration| iteration.gpu.is_some());
        if measured().any(|iteration| iteration.gpu_busy.is_none()) {
            Self::Plain
        } else if measured().any(|iteration| iteration.gpu != iteration.gpu_busy) {
            Self::Stretched
        } else {
            Self::Kernels
        }
    }

    /// The GPU time of an iteration, if it is one of those.
    pub const fn time(self, iteration: &Iteration) -> Option<u64> {
        match (self, iteration.gpu_busy) {
            (Self::Plain, Some(_)) => None,
            (Self::Plain | Self::Stretched, _) => iteration.gpu,
            (Self::Kernels, busy) => busy,
        }
    }
}

/// Of an iteration: the kernels that began in it, and what the GPU was at work if they were taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InKernels {
    pub kernels: u32,
    pub busy: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_processor_is_divided_by_what_the_code_ran() {
        // 10 ms of code and as much of waiting for the GPU.
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
            (iteration.delayed_in_code(), iteration.blocked())
        };
        // The wait sleeps: what the code did not run it waited for, and what is left of that came at the end of the sleep.
        assert_eq!(in_code(4_000, 6_000, 0, 1_000), (6_000, 0));
        assert_eq!(in_code(4_000, 9_000, 0, 1_000), (6_000, 0));
        // It spins, and was without a processor for as long as the code was.
        assert_eq!(in_code(10_000, 10_000, 500, 1_000), (5_000, 0));
        assert_eq!(in_code(20_000, 0, 1_000, 1_000), (0, 0));
        // A sleep in the code is no wait for a processor.
        assert_eq!(in_code(4_000, 1_000, 0, 1_000), (1_000, 5_000));
        // Whether the wait sleeps is not known: as much as all, and no less than the code did not run.
        assert_eq!(in_code(10_000, 10_000, 0, 0), (5_000, 0));
        assert_eq!(in_code(2_000, 8_000, 0, 0), (8_000, 0));
    }
}
