//! Figures of one process by which rules are judged. Unless a comment says otherwise, shares are fractions of the total
//! time of iterations, without waits for requests.

use std::cell::OnceCell;

use tllmprof_calls::{CallPurpose, Wait, kind_of};
use tllmprof_record::Metric;

use super::loop_blocks::LoopThread;
use super::recompiles::Recompiles;
use crate::events::facts::CallCount;
use crate::events::iteration::Iteration;
use crate::events::named::Named;
use crate::events::origin::{Data, SMALL_COST};
use crate::events::requests::gives_work;
use crate::events::window::Window;
use crate::findings::Confidence;
use crate::iterations::sum::Sum;
use crate::ledger::slow::LARGE_BATCH_RATIO;
use crate::ledger::{Basis, Claim, Claims, LedgerKind};
use crate::numbers::bootstrap::Statistic;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::Share;
use crate::process::Process;
use crate::process::gpu::Busy;

/// Maximum number of iterations, sizes or functions that the text of a finding names one by one.
pub(super) const MAX_NAMED: usize = 4;

/// Minimum number of iterations for high confidence in a finding.
const MANY_ITERATIONS: u64 = 30;

/// Minimum ratio of an iteration's time to the median for the iteration to be called slow.
const SLOW_RATIO: f64 = 1.5;

/// Maximum share of the time, as a fraction, that tllmprof's recording may take. If the recording takes more, GPU idle
/// time is not representative of the program.
const MAX_RECORDER_SHARE: f64 = 0.2;

/// Maximum ratio of the median time of iterations with recorded kernels to the median time of iterations without. With
/// a larger ratio, the recording is assumed to have made the iterations longer.
const MAX_STRETCH: f64 = 1.1;

/// Minimum of two figures for the conclusion that the GPU always finishes before the host waits for it. The first
/// figure is the mean number, per iteration, of waits until a stream is empty. The second figure is the share of
/// iterations with a wait, as a fraction. The conclusion also requires short waits (see [`MAX_NO_WAIT_SHARE`]).
const MIN_DRAINED: f64 = 0.9;
/// Maximum share of the iterations' time in which the host waits for the GPU, as a fraction. A larger share
/// contradicts the conclusion that the GPU always finishes before the host waits for it.
const MAX_NO_WAIT_SHARE: f64 = 0.02;
/// Maximum time that the transfer of an asynchronous copy to the host is assumed to take, in nanoseconds, if kernels
/// were not recorded. That is enough for about 1 MiB of pageable memory. A call that takes longer seems to wait for
/// earlier work of the GPU.
const MAX_TRANSFER_NS: u64 = 200_000;
/// Maximum share of the iterations' time, as a fraction, that is assumed to be transfers of copies to the host (see
/// [`MAX_TRANSFER_NS`]). Without this maximum, many short copies could hide a long wait.
const MAX_TRANSFER_SHARE: f64 = 0.1;

/// A process that has iterations, with the figures by which rules are judged.
pub(crate) struct Evidence<'a> {
    pub process: &'a Process,
    /// All processes of the report.
    pub processes: &'a [Process],
    /// The index of this process among all processes of the report.
    pub place: usize,
    pub sum: &'a Sum,
    /// The name that distinguishes the process from other processes; empty if only one process has iterations.
    pub who: String,
    recompiles: OnceCell<Recompiles>,
    event_loop: OnceCell<Option<LoopThread>>,
}

/// Number of CUDA calls of some kind, and their total time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallTotals {
    pub count: u64,
    pub total: u64,
}

/// Times of launches. Each is a median over iterations, so that single iterations with other delays do not affect it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launching {
    /// Median share of launches in the time of an iteration, as a fraction.
    pub share: f64,
    /// Time of one launch, in nanoseconds: the median of the mean launch times of the iterations.
    pub mean: u64,
}

/// Averages over the recorded kernels of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelAverages {
    /// Mean number of kernels in an iteration.
    pub kernels: f64,
    /// Mean time of a kernel, in nanoseconds.
    pub mean: u64,
    /// Share of the iterations' time that copies between host and GPU take, as a fraction.
    pub copies: f64,
}

/// Utilization of a GPU by all processes that use it, as fractions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metrics {
    pub sm: Option<f64>,
    pub bandwidth: Option<f64>,
    /// Share of the time in which at least one kernel ran, as a fraction.
    pub busy: Option<f64>,
}

impl<'a> Evidence<'a> {
    /// Returns the evidence of each process that has iterations. `names` contains a name for each process in
    /// `processes`, in the same order.
    pub(crate) fn collect(processes: &'a [Process], names: &[String]) -> Vec<Self> {
        let named = processes.iter().zip(names).enumerate();
        let with = named.filter_map(|(place, (process, name))| {
            Some(Self {
                process,
                processes,
                place,
                sum: process.sum.as_ref()?,
                who: name.clone(),
                recompiles: OnceCell::new(),
                event_loop: OnceCell::new(),
            })
        });
        let mut with: Vec<_> = with.collect();
        if let [one] = &mut with[..] {
            one.who.clear();
        }
        with
    }

    /// Returns the iterations in which torch.compile compiles, according to sampled stacks.
    pub(super) fn recompiles(&self) -> &Recompiles {
        self.recompiles
            .get_or_init(|| Recompiles::find(self.process))
    }

    /// Returns the thread with the event loop that is blocked longest, according to sampled stacks; `None` if no sampled
    /// thread runs an event loop.
    pub(super) fn event_loop(&self) -> Option<&LoopThread> {
        let found = self
            .event_loop
            .get_or_init(|| LoopThread::find(self.process));
        found.as_ref()
    }

    /// Returns the qualifying iterations, which are those that the report's figures include.
    pub(crate) fn iterations(&self) -> impl Iterator<Item = &'a Iteration> + use<'a> {
        let windows = &self.process.windows;
        windows.iter().flat_map(Window::qualified)
    }

    /// Returns the words that follow a count in a text: "a step" if the count is a mean per iteration, "in all" if the
    /// trace has no iterations.
    pub(crate) fn a_step(&self) -> &'static str {
        match self.process.facts.origin.lacks(Data::Iterations) {
            true => "in all",
            false => "a step",
        }
    }

    /// Returns words for the time on which shares are based: all of the iterations' time, or that time
    /// without waits for requests.
    pub(crate) const fn worked(&self) -> &'static str {
        match self.sum.totals.idle {
            0 => "the time",
            _ => "the time without waits for requests",
        }
    }

    /// Returns words for the GPU whose busy and idle times findings are about: with its number if the process used
    /// several GPUs.
    pub(crate) fn the_gpu(&self) -> String {
        let number = self.process.gpu.numbered();
        number.map_or_else(|| "the GPU".to_owned(), |device| format!("GPU {device}"))
    }

    /// Returns true if the recording took so much time that GPU idle time is not representative of
    /// the program.
    pub(crate) fn is_distorted(&self) -> bool {
        self.is_stretched()
            || self
                .process
                .own_share()
                .is_some_and(|own| own > MAX_RECORDER_SHARE)
    }

    /// Returns the confidence in findings on this process, by the number of its iterations and by
    /// the distortion from recording.
    pub(crate) fn confidence(&self) -> Confidence {
        match self.sum.iterations {
            few if few < Statistic::Mean.least() as u64 => Confidence::Low,
            some if some < MANY_ITERATIONS || self.is_distorted() => Confidence::Medium,
            _ => Confidence::High,
        }
    }

    /// Returns true if GPU idle time comes from iterations that recording is assumed to have made longer. That is so if
    /// they are longer than iterations without recorded kernels (see [`MAX_STRETCH`]), or if there are no iterations
    /// without recorded kernels. For the trace of another profiler, only the estimated cost of that profiler decides
    /// (see [`SMALL_COST`]).
    fn is_stretched(&self) -> bool {
        if let Some(cost) = self.process.profiler_share() {
            return cost > SMALL_COST;
        }
        let longer = |with: Quantiles, without: Quantiles| {
            with.p50 as f64 > MAX_STRETCH * without.p50 as f64
        };
        match (self.sum.with_kernels, self.sum.without_kernels) {
            (_, None) => true,
            (Some(with), Some(without)) => {
                self.process.ledger.gpu_from == Basis::Kernels && longer(with, without)
            }
            (None, _) => false,
        }
    }

    /// Returns words for the reason why the recording distorts the figures.
    pub(crate) fn distorted(&self) -> String {
        if let Some(cost) = self.process.profiler_share() {
            let cost = Share(cost);
            return format!("recording took {cost} of the time by an estimate");
        }
        match self
            .process
            .own_share()
            .filter(|own| *own > MAX_RECORDER_SHARE)
        {
            Some(own) => format!("the recorder took {} of the time", Share(own)),
            None if self.sum.without_kernels.is_none() => {
                "kernels were taken in all iterations, which slows the host".to_owned()
            }
            None => "iterations with kernels take longer, and do other work than those without"
                .to_owned(),
        }
    }

    /// Returns words for `some`, the number of iterations in which a figure was measured. The words are
    /// empty if `some` is 0 or the number of all iterations.
    pub(crate) fn measured_in(&self, some: u64) -> String {
        match self.sum.iterations {
            all if some > 0 && some < all => format!(" (measured in {some} of {all})"),
            _ => String::new(),
        }
    }

    /// Returns a time in nanoseconds as a fraction of the iterations' total time without waits for requests. The
    /// fraction is at most 1.
    pub(crate) fn share(&self, ns: u64) -> f64 {
        self.sum.share(ns).min(1.0)
    }

    /// Limits the share of the time that a host activity takes to the share in which the GPU is idle during the
    /// activity. While the GPU works, the activity costs no time. `claim` is the category of the idle time. Returns
    /// `share` unchanged if the idle time is unknown because kernels were not recorded.
    pub(super) fn idle_part(&self, share: f64, claim: Claim) -> f64 {
        self.limit_to_idle(share, |claims| claims.share(claim))
    }

    /// Limits a share of the time to the share that `idle` returns, if the GPU's idle time is known from recorded
    /// kernels.
    pub(super) fn limit_to_idle(&self, share: f64, idle: impl Fn(&Claims) -> f64) -> f64 {
        let claims = &self.process.ledger.details.claims;
        match self.kernels() {
            Some(_) if claims.gpu > 0 => share.min(idle(claims)),
            _ => share,
        }
    }

    pub(super) fn calls(&self, belongs: impl Fn(&CallCount) -> bool) -> CallTotals {
        let rows = &self.process.facts.calls;
        let is_one = |call: &&Named| {
            let mut same = rows.iter().filter(|row| row.name == call.name);
            same.any(&belongs)
        };
        let calls = self.process.calls.calls.iter().filter(is_one);
        calls.fold(CallTotals::default(), |sum, call| CallTotals {
            count: sum.count + call.count,
            total: sum.total.saturating_add(call.total),
        })
    }

    /// Returns true if the time of the functions that copy to a GPU (with `HtoD` in their names) is more than half of
    /// the time of all functions for asynchronous copies.
    pub(super) fn copies_to_device(&self) -> bool {
        let all = self.calls(|row| matches!(kind_of(&row.name), Some(CallPurpose::AsyncCopy(_))));
        let to_device = self.calls(|row| row.name.contains("HtoD"));
        to_device.total * 2 > all.total
    }

    pub(crate) fn launching(&self) -> Launching {
        let millionths = self.iterations().map(|iteration| {
            let share = iteration.launching.ns as f64 / iteration.busy().max(1) as f64;
            (share.min(1.0) * 1e6) as u64
        });
        let launch = self.iterations().filter(|iteration| iteration.launches > 0);
        let means = launch.map(|iteration| iteration.launching.ns / u64::from(iteration.launches));
        Launching {
            share: Quantiles::from_values(millionths).map_or(0.0, |shares| shares.p50 as f64 / 1e6),
            mean: Quantiles::from_values(means).map_or(0, |means| means.p50),
        }
    }

    /// Returns the share of the host's causes of one kind, according to the ledger (time by cause). The ledger's own
    /// shares are based on all of the time, but the returned share is based on the time without waits for requests.
    pub(crate) fn worked_share(&self, kind: LedgerKind) -> f64 {
        let ledger = &self.process.ledger;
        let worked = 1.0 - ledger.host_share(LedgerKind::Requests);
        match worked > 0.0 {
            true => (ledger.host_share(kind) / worked).min(1.0),
            false => 0.0,
        }
    }

    /// Returns the share of time in which the host waits for the GPU, according to the ledger (time by cause). The
    /// share is based on the time without waits for requests.
    pub(crate) fn waits(&self) -> f64 {
        self.worked_share(LedgerKind::Wait)
    }

    /// Returns true if the GPU has always finished its work before the host waits for it. That is assumed if the
    /// iterations' thread waits in nearly every iteration (see [`MIN_DRAINED`]) until a stream is empty, but spends
    /// hardly any time in these waits. In that case, only the host's time decides how long an iteration takes.
    pub(crate) fn gpu_ends_first(&self) -> bool {
        let drains = self.calls(|row| row.waits_for().is_some_and(|wait| wait != Wait::Event));
        let wait = self.iterations().filter(|iteration| iteration.wait > 0);
        let wait = wait.count() as f64;
        self.calls(gives_work).count > 0
            && self.sum.a_step(drains.count) > MIN_DRAINED
            && wait > MIN_DRAINED * self.iterations().count() as f64
            && self.waits_for_work() < MAX_NO_WAIT_SHARE
    }

    /// Returns the share of the time in which the host waits for work of the GPU, as a fraction. A copy to the host
    /// waits for earlier work and then transfers data. The assumed time of the transfers is left out. The ledger does
    /// not always separate these waits from the transfers, so the waits are estimated from the time of the copy calls
    /// (see [`MAX_TRANSFER_NS`]).
    pub(crate) fn waits_for_work(&self) -> f64 {
        let ledger = &self.process.ledger;
        let in_copies = ledger.share_in_copies();
        let worked = 1.0 - ledger.host_share(LedgerKind::Requests);
        let others = self.waits() - in_copies / worked.max(f64::EPSILON);
        let copies = self.calls(CallCount::copies_to_host);
        let transfers = self.share(copies.count.saturating_mul(MAX_TRANSFER_NS));
        let waited = self.share(copies.total) - transfers.min(MAX_TRANSFER_SHARE);
        others.max(0.0) + waited.max(0.0)
    }

    /// Returns the time lost to a cause. `part` returns the nanoseconds that the cause takes in a given iteration. In
    /// each iteration, at most the time outside waits for the GPU counts as lost.
    pub(crate) fn lost(&self, part: impl Fn(&Iteration) -> u64) -> Lost {
        // Skip iterations in which a graph is captured or code is compiled, because the capture or the compilation
        // makes them slow. If most iterations are such iterations, skip none.
        let is_slow =
            |iteration: &Iteration| iteration.preparation.captures > 0 || self.compiles(iteration);
        let slow = self.iterations().filter(|iteration| is_slow(iteration));
        let few = slow.count() * 2 <= self.iterations().count();
        self.beyond(|iteration| {
            let host = iteration.busy().saturating_sub(iteration.wait);
            match few && is_slow(iteration) {
                true => 0,
                false => part(iteration).min(host),
            }
        })
    }

    /// Returns true if code is loaded or compiled in the iteration, according to its calls or to sampled stacks.
    fn compiles(&self, iteration: &Iteration) -> bool {
        iteration.preparation.compilations > 0
            || self.recompiles().iterations.contains(&iteration.n)
    }

    /// Returns true if a graph is captured in the iteration, but no code is loaded or compiled. The time of iterations
    /// with both is left to the finding `compilation`, so that it is not counted twice.
    pub(crate) fn only_captures(&self, iteration: &Iteration) -> bool {
        iteration.preparation.captures > 0 && !self.compiles(iteration)
    }

    /// Returns the time by which iterations that capture a graph and do not compile (see [`Self::only_captures`])
    /// exceed the median of the other iterations.
    pub(crate) fn captures(&self) -> Lost {
        self.longer(|iteration| self.only_captures(iteration))
    }

    /// Returns the time by which the iterations for which `is_one` returns true exceed the median of the other
    /// iterations. Iterations with recorded kernels are compared only with other iterations with recorded kernels.
    pub(crate) fn longer(&self, is_one: impl Fn(&Iteration) -> bool) -> Lost {
        let usual = |taken: bool| {
            let like = self
                .iterations()
                .filter(|iteration| !is_one(iteration) && iteration.gpu_busy.is_some() == taken);
            Quantiles::from_values(like.map(Iteration::busy)).map(|times| times.p50)
        };
        let (with, without) = (usual(true), usual(false));
        self.beyond(|iteration| {
            let usual = match iteration.gpu_busy {
                Some(_) => with,
                None => without,
            };
            match is_one(iteration) {
                false => 0,
                true => usual.map_or(0, |usual| iteration.busy().saturating_sub(usual)),
            }
        })
    }

    /// Returns the time by which iterations with large batches exceed the median iteration. A batch
    /// is large if its number of tokens is more than `LARGE_BATCH_RATIO` times the mean.
    pub(crate) fn large_batches(&self) -> Lost {
        let tokens = |iteration: &Iteration| iteration.batch.map(|batch| u64::from(batch.tokens));
        let all = || self.iterations().filter_map(tokens);
        let mean = all().sum::<u64>() / (all().count() as u64).max(1);
        let usual = self.sum.time.p50;
        self.beyond(|iteration| match tokens(iteration) {
            Some(tokens) if tokens > LARGE_BATCH_RATIO * mean => {
                iteration.busy().saturating_sub(usual)
            }
            _ => 0,
        })
    }

    /// Returns the time that all iterations together lost to a cause. `part` returns the nanoseconds that a given
    /// iteration lost.
    pub(super) fn beyond(&self, part: impl Fn(&Iteration) -> u64) -> Lost {
        let usual = self.sum.time.p50;
        let slow = (usual as f64 * SLOW_RATIO) as u64;
        let mut lost = Lost::default();
        let (mut beyond, mut explained) = (0_u64, 0_u64);
        for iteration in self.iterations() {
            let part = part(iteration);
            lost.total = lost.total.saturating_add(part);
            if iteration.busy() > slow {
                let more = iteration.busy() - usual;
                lost.slow += 1;
                lost.hit += u64::from(part >= more / 2);
                beyond = beyond.saturating_add(more);
                explained = explained.saturating_add(part.min(more));
            }
        }
        if beyond > 0 {
            lost.of_slow = explained as f64 / beyond as f64;
        }
        lost
    }

    /// Returns averages over the recorded kernels of the process. Returns `None` if kernels were not recorded, or if
    /// the record does not show how long the GPU was busy, for example because too many kernels are missing.
    pub(super) fn kernels(&self) -> Option<KernelAverages> {
        let taken = self.process.kernels.window.as_ref()?;
        self.process.gpu.busy?;
        let all = self.process.kernels.totals.iter();
        let (count, total) = all.fold((0_u64, 0_u64), |(count, total), kernel| {
            (count + kernel.count, total.saturating_add(kernel.total))
        });
        let copies = self.process.kernels.copies.iter();
        let copies = copies.filter(|copy| ["HtoD", "DtoH"].contains(&copy.kind.as_str()));
        let copying = copies.fold(0_u64, |sum, copy| sum.saturating_add(copy.total));
        Some(KernelAverages {
            kernels: taken.a_step(taken.kernels),
            mean: total.checked_div(count).unwrap_or(0),
            copies: taken.share(copying),
        })
    }

    /// Returns the share of time in which the GPU is busy. The share is computed from recorded kernels or,
    /// without these, from sampled utilization metrics. Returns `None` if the record has neither.
    pub(crate) fn busy(&self) -> Option<Busy> {
        let sampled = || self.metrics().and_then(|metrics| metrics.busy);
        self.process
            .gpu
            .busy
            .or_else(|| sampled().map(Busy::Sampled))
    }

    /// Returns the utilization metrics of the GPU with the highest SM utilization or, if that was not recorded, of the
    /// GPU with the highest share of time in which a kernel ran. Returns `None` if neither was recorded.
    pub(crate) fn metrics(&self) -> Option<Metrics> {
        let all = || self.process.metrics.sums.iter();
        let of = |metric| all().filter(move |sum| sum.metric == metric);
        let most = of(Metric::SmUtil)
            .max_by(|a, b| a.mean.total_cmp(&b.mean))
            .or_else(|| of(Metric::GpuUtil).max_by(|a, b| a.mean.total_cmp(&b.mean)))?;
        let part = |metric| {
            let mut sums = of(metric).filter(|sum| sum.device == most.device);
            Some(sums.next()?.mean / 100.0)
        };
        Some(Metrics {
            sm: part(Metric::SmUtil),
            bandwidth: part(Metric::DramBandwidth),
            busy: part(Metric::GpuUtil),
        })
    }
}

/// Time that all iterations lost to one cause, and the effect of that cause on slow iterations. An iteration is slow
/// if its time exceeds [`SLOW_RATIO`] times the median.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    /// Total time lost, in nanoseconds.
    pub total: u64,
    /// Number of slow iterations.
    pub slow: u64,
    /// Number of slow iterations in which this cause explains at least half of the time beyond the median.
    pub hit: u64,
    /// The share of this cause in the total time by which slow iterations exceed the median, as a fraction.
    pub of_slow: f64,
}

/// Returns the first of some numbers as text, with an ellipsis if there are more than [`MAX_NAMED`].
pub(super) fn first_numbers(numbers: impl Iterator<Item = u64>) -> String {
    let numbers = numbers.take(MAX_NAMED + 1);
    let mut numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
    if let Some(last) = numbers.get_mut(MAX_NAMED) {
        "…".clone_into(last);
    }
    numbers.join(", ")
}
