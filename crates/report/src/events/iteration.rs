//! An iteration, and the times and counts that were measured in it.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::Batch;

use super::batch::{InBatch, write_batch};

use crate::events::qualify::Unqualified;

/// Time and events that the operating system counted for the thread of an iteration. Times are in
/// nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Time that the thread was on a processor.
    pub ran: u64,
    /// Part of `ran` that the thread spent in the operating system's kernel.
    pub in_kernel: u64,
    /// Time that the thread was ready to run but had no processor.
    pub delayed: u64,
    /// Number of times that the thread's processor was given to another thread.
    pub preempted: u32,
    /// Number of page faults of the thread, with or without a read from disk.
    pub faults: u32,
    /// Number of page faults that read from a disk.
    pub disk_faults: u32,
    /// Time that the thread was on a processor during waits for the GPU. Only some waits are
    /// measured.
    pub ran_in_waits: u64,
    /// Total time of the measured waits for the GPU.
    pub waits: u64,
}

impl Used {
    /// Returns the use of an iteration that took `duration` nanoseconds. In the record, the time without a processor may
    /// be longer than the time for which the thread was off its processor: earlier libraries counted it since the
    /// preemption before, and a Linux 6.18 was seen to count time asleep.
    pub fn within(self, duration: u64) -> Self {
        let delayed = self.delayed.min(duration.saturating_sub(self.ran));
        Self { delayed, ..self }
    }

    /// Stores the figures that an event of the record contains. `what` is the kind of these figures. `ns` is a time in
    /// nanoseconds. `count` is a number of preemptions or page faults or, for waits, their total time in microseconds.
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

    /// Returns an estimate of the time for which the thread was off the processor during waits for the GPU that took
    /// `wait` in total. The estimate assumes the same share of time off the processor as in the measured waits. All
    /// times are in nanoseconds.
    fn asleep_in(&self, wait: u64) -> u64 {
        match self.waits {
            // No wait was measured. Return the largest possible time, because the thread may have been off the
            // processor for the whole time.
            0 => wait,
            waits => {
                let spins = self.ran_in_waits.min(waits);
                let asleep = u128::from(wait) * u128::from(waits - spins) / u128::from(waits);
                asleep as u64
            }
        }
    }
}

/// One iteration inside a window. An iteration is one step of the program, such as one batch of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct Iteration {
    /// The number of the iteration in the process, counted from 0.
    pub n: u64,
    /// The time at which the iteration began.
    #[serde(rename = "start_ns")]
    pub start: u64,
    /// The duration of the iteration.
    #[serde(rename = "dur_ns")]
    pub duration: u64,
    /// The time that the GPU worked for the iteration; `null` if it was not measured. `gpu_from` of the process says
    /// how it was measured.
    // If CUDA events measured no iteration of the record, this is the busy time from recorded kernels.
    #[serde(rename = "gpu_ns")]
    pub gpu: Option<u64>,
    /// The ID of the thread that ended the iteration. This is the iteration's thread.
    pub thread: u32,
    /// The number of launches of kernels and CUDA graphs during the iteration, on all threads.
    #[schemars(extend("unit" = "launches"))]
    pub launches: u32,
    /// The number of CUDA calls during the iteration, on all threads.
    #[schemars(extend("unit" = "calls"))]
    pub calls: u32,
    /// The time that the iteration's thread spent in CUDA calls that wait for the GPU.
    #[serde(rename = "wait_ns")]
    pub wait: u64,
    /// The time that the iteration's thread waited for requests: in a function in which a known engine waits for them,
    /// or in a CUDA call that waits for a GPU without work. This time is part of `dur_ns`, but percentiles and findings
    /// leave it out.
    #[serde(rename = "idle_ns")]
    pub idle: u64,
    /// The time that the iteration's thread waited for Python's global interpreter lock (GIL).
    #[serde(rename = "gil_wait_ns")]
    pub gil_wait: u64,
    /// The time that Python's garbage collections took during the iteration, on all threads.
    #[serde(rename = "gc_ns")]
    pub gc: u64,
    /// Use of the processor and memory by the iteration's thread; `None` if it was not recorded.
    #[serde(flatten, serialize_with = "write_used")]
    #[schemars(with = "UsedView")]
    pub used: Option<Used>,
    /// The number of kernels that began during the iteration; 0 if kernels were not recorded.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u32,
    /// The time during the iteration in which at least one kernel or copy ran, on the GPU that was busy longest; `null`
    /// if kernels were not recorded. Recording kernels makes an iteration longer.
    #[serde(rename = "gpu_busy_ns")]
    pub gpu_busy: Option<u64>,
    /// The batch that the iteration worked on, as read from the arguments of the engine's step function; `null` if it
    /// is not known.
    #[serde(serialize_with = "write_batch")]
    #[schemars(with = "Option<InBatch>")]
    pub batch: Option<Batch>,
    /// True if the figures of windows include the iteration. `unqualified` of the process says why the other iterations
    /// do not count.
    // `None` if figures include the iteration, otherwise the reason why they do not. The JSON
    // contains only true or false.
    #[serde(rename = "qualifies", serialize_with = "write_qualifies")]
    #[schemars(with = "bool")]
    pub unqualified: Option<Unqualified>,
    /// True if the iteration did not reach its end, for example because the process ended.
    pub cut: bool,
    /// The calls that launch kernels or graphs, on all threads.
    #[serde(skip)]
    pub launching: InLaunches,
    #[serde(skip)]
    pub preparation: Preparation,
    /// The first wait for the GPU after which the thread launched more work, as a row in the table of CUDA calls;
    /// `None` if there was no such wait.
    #[serde(skip)]
    pub launched_after: Option<u8>,
}

/// Sums of an iteration's calls that launch kernels or graphs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InLaunches {
    /// Time in these calls, in nanoseconds.
    pub ns: u64,
    /// Number of these calls that launch a graph.
    pub graphs: u32,
}

/// Numbers of an iteration's calls that prepare work for the GPU rather than start it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Preparation {
    /// Number of calls that begin or end a stream capture, or that were captured into a graph instead of executed.
    pub captures: u32,
    /// Number of calls that load or compile code.
    pub compilations: u32,
}

/// Use of the processor and memory by the iteration's thread, as written to JSON.
#[derive(Default, Serialize, JsonSchema)]
struct UsedView {
    /// The time that the iteration's thread ran on a processor; `null` if it is not known.
    processor_ns: Option<u64>,
    /// The time that the iteration's thread was ready to run but waited for a processor, because another thread ran on
    /// it; `null` if it is not known.
    delayed_ns: Option<u64>,
    /// The number of page faults of the iteration's thread since the number was last read; `null` if it is not known.
    /// It is read in each iteration that is longer than usual or whose thread has left its processor, and otherwise in
    /// every eighth iteration. So it may include the page faults of up to seven earlier iterations.
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
    /// Returns the iteration's duration without waits for requests, in nanoseconds.
    pub const fn busy(&self) -> u64 {
        self.duration.saturating_sub(self.idle)
    }

    /// Returns the minimum time that the iteration's thread was asleep or blocked, in nanoseconds.
    /// Waits for the GPU, the GIL and requests are not included.
    pub fn blocked(&self) -> u64 {
        let waits = self.gil_wait.saturating_add(self.idle);
        self.used.map_or(0, |used| {
            let waits = waits.saturating_add(used.asleep_in(self.wait));
            let accounted = used.ran.saturating_add(used.delayed).saturating_add(waits);
            self.duration.saturating_sub(accounted)
        })
    }

    /// Returns the maximum time that the iteration's thread may have been asleep or blocked, in
    /// nanoseconds. Waits for the GPU, the GIL and requests are not included.
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

    /// Returns the time that the iteration's thread was ready to run but had no processor, in nanoseconds.
    pub fn delayed(&self) -> u64 {
        self.used.map_or(0, |used| used.delayed)
    }

    /// Returns the part of [`Self::delayed`] that lies outside waits for the GPU, the GIL and requests, in nanoseconds.
    /// It is the time for which the code outside these waits had no processor. If no wait for the GPU was measured, the
    /// result is at least a share of the delay: the share of this code in the iteration's duration.
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

    /// Returns the end of the iteration, in nanoseconds.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    /// Returns true if the report's figures on windows include the iteration. These figures leave out some iterations,
    /// such as idle ones.
    #[must_use]
    pub const fn qualifies(&self) -> bool {
        self.unqualified.is_none()
    }
}

/// Returns `time` × `part` / `whole`, or 0 if `whole` is 0.
pub(crate) const fn part(time: u64, part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => (time as u128 * part as u128 / whole as u128) as u64,
    }
}

/// The method by which GPU time was measured, and the iterations in which it was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub enum GpuFrom {
    /// CUDA events before and after the GPU work of an iteration, in iterations in which no kernels were recorded.
    #[serde(rename = "events")]
    Plain,
    /// CUDA events before and after the GPU work of an iteration, in iterations in which kernels were recorded.
    /// Recording kernels makes an iteration longer. No other iterations were measured.
    #[serde(rename = "events in kernel windows")]
    Stretched,
    /// The recorded kernels themselves. Recording kernels makes an iteration longer.
    #[serde(rename = "kernels")]
    Kernels,
}

impl GpuFrom {
    /// Returns the method by which the GPU time of the given iterations was measured.
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

    /// Returns true if GPU time was measured. For [`Self::Kernels`], at least one iteration's busy time must be above
    /// 0, because all busy times are 0 if the kernels are missing from the record.
    pub fn is_measured<'a>(self, mut all: impl Iterator<Item = &'a Iteration>) -> bool {
        self != Self::Kernels
            || all.any(|iteration| iteration.gpu_busy.is_some_and(|busy| busy > 0))
    }

    /// Returns the GPU time of an iteration in nanoseconds, or `None` if this method did not
    /// measure it.
    pub const fn time(self, iteration: &Iteration) -> Option<u64> {
        match (self, iteration.gpu_busy) {
            (Self::Plain, Some(_)) => None,
            (Self::Plain | Self::Stretched, _) => iteration.gpu,
            (Self::Kernels, busy) => busy,
        }
    }
}

/// Number of kernels that began in an iteration, and the GPU's busy time in nanoseconds; the busy
/// time is `None` if kernels were not recorded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct InKernels {
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
        // In the first of the next four checks, the thread sleeps while it waits for the GPU. In the second one, it
        // spins meanwhile. In the third and the fourth one, the waits were not measured.
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
    fn waiting_for_a_processor_is_no_longer_than_the_thread_was_off_it() {
        let used = |ran, delayed| Used {
            ran,
            delayed,
            ..Used::default()
        };
        assert_eq!(used(2_000, 270_000).within(5_000), used(2_000, 3_000));
        assert_eq!(used(2_000, 1_000).within(5_000), used(2_000, 1_000));
        assert_eq!(used(6_000, 1_000).within(5_000), used(6_000, 0));
    }

    #[test]
    fn waiting_for_a_processor_is_divided_by_what_the_code_ran() {
        // In this test, the iteration has 10 ms of code and a wait of 10 ms for the GPU. Times are in microseconds.
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
        // The thread sleeps during the wait for the GPU. It ran for only 4 of the 10 ms of code, so it lacked a
        // processor for 6 ms in the code. Any further delay occurred when the thread woke up from the wait.
        assert_eq!(in_code(4_000, 6_000, 0, 1_000), (6_000, 0));
        assert_eq!(in_code(4_000, 9_000, 0, 1_000), (6_000, 0));
        // The thread spins during the wait for the GPU, so it also needs a processor then. The wait and the code are
        // equally long, so the code has half of the delay.
        assert_eq!(in_code(10_000, 10_000, 500, 1_000), (5_000, 0));
        assert_eq!(in_code(20_000, 0, 1_000, 1_000), (0, 0));
        // The thread slept for 5 ms in the code. This sleep does not count as a delay by a missing processor.
        assert_eq!(in_code(4_000, 1_000, 0, 1_000), (1_000, 5_000));
        // It is unknown whether the thread slept or spun during the wait for the GPU. So the delay is divided in
        // proportion to the lengths of the wait and the code. But the code gets at least the processor time that it
        // lacks, which is its 10 ms minus the time for which the thread ran.
        assert_eq!(in_code(10_000, 10_000, 0, 0), (5_000, 0));
        assert_eq!(in_code(2_000, 8_000, 0, 0), (8_000, 0));
    }
}
