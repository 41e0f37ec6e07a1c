//! Sums and quantiles over the iterations of windows.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::iteration::{GpuFrom, Iteration};
use crate::events::window::Window;
use crate::events::work_classes::WorkClasses;
use crate::numbers::quantiles::Quantiles;

/// Maximum share of the time of iterations without recorded kernels, as a fraction, that may be in iterations with a
/// kind of work of which no kernels were recorded. With a larger share, the recorded kernels do not represent the
/// iterations without recorded kernels.
const MAX_UNLIKE: f64 = 0.3;

/// Sums over the qualifying iterations of one or several windows. An iteration qualifies if its `qualifies` is true.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Sum {
    /// The number of qualifying iterations.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The number of iterations per second of `wall_ns`; `null` if `wall_ns` is 0.
    #[schemars(extend("unit" = "1/s"))]
    pub per_second: Option<f64>,
    /// The time from the start of the first iteration to the end of the last one, summed over windows. Iterations that
    /// are missing or do not qualify are left out.
    #[serde(rename = "wall_ns")]
    pub wall: u64,
    #[serde(flatten)]
    pub between: BetweenIterations,
    /// The distribution of the durations of the iterations, without waits for requests.
    pub time: Quantiles,
    /// The number of iterations that `idle`, `wait` and `wait_share` are based on. Iterations with recorded kernels are
    /// left out if there are others, because recording kernels makes iterations longer.
    #[schemars(extend("unit" = "iterations"))]
    pub host_iterations: u64,
    /// The distribution of the time that the iterations' threads waited for requests.
    pub idle: Quantiles,
    /// The distribution of GPU time per iteration; `null` if it was not measured. If CUDA events measured it, this is
    /// the time from the first GPU work of an iteration to its last, with the gaps. If kernels measured it, this is the
    /// time in which at least one kernel or copy ran. `gpu_from` says which.
    pub gpu: Option<Quantiles>,
    /// The method by which GPU time was measured, and the iterations in which it was measured.
    pub gpu_from: GpuFrom,
    /// The number of iterations that `gpu` and `gpu_share` are based on.
    #[schemars(extend("unit" = "iterations"))]
    pub gpu_iterations: u64,
    /// The share of GPU time in the duration of the iterations that `gpu` is based on; `null` if GPU time was not
    /// measured.
    #[schemars(extend("unit" = "part of 1"))]
    pub gpu_share: Option<f64>,
    /// Quantiles of the time in which any kernel or copy ran, in the iterations with recorded kernels; `None` if there
    /// are no such iterations.
    #[serde(skip)]
    pub gpu_busy: Option<Quantiles>,
    /// The distribution of the durations of iterations in which kernels were recorded; `null` if there are none.
    /// Recording kernels makes iterations longer.
    pub with_kernels: Option<Quantiles>,
    /// The distribution of the durations of iterations in which kernels were not recorded; `null` if there are none.
    pub without_kernels: Option<Quantiles>,
    /// The distribution of the time per iteration that the iteration's thread waited for the GPU in CUDA calls.
    pub wait: Quantiles,
    /// The share of the iterations' time that their threads waited for the GPU in CUDA calls, without waits in copies.
    /// It is based on the same iterations as `wait`.
    // This field is set later, from the ledger (time by cause), which counts each nanosecond only once.
    #[schemars(extend("unit" = "part of 1"))]
    pub wait_share: f64,
    #[serde(flatten)]
    pub python: PythonShares,
    /// The mean number of launches of kernels and CUDA graphs in an iteration, on all threads.
    #[schemars(extend("unit" = "launches per iteration"))]
    pub launches: f64,
    /// The mean number of CUDA calls in an iteration, on all threads.
    #[schemars(extend("unit" = "calls per iteration"))]
    pub calls: f64,
    #[serde(skip)]
    pub totals: Totals,
}

/// The time in which no iteration was open.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct BetweenIterations {
    /// The mean time per iteration in which no iteration was open. If a rule names a function, an iteration ends when
    /// the function returns, and the next one begins with its next call. The times of iterations and the ledger do not
    /// contain the time between.
    #[serde(rename = "between_ns")]
    pub mean: u64,
    /// The share of the time in which no iteration was open in `wall_ns`.
    #[schemars(extend("unit" = "part of 1"))]
    #[serde(rename = "between_share")]
    pub share: f64,
}

/// Shares of Python's waits and collections in the time of iterations.
#[derive(Clone, Copy, Default, Debug, Serialize, JsonSchema)]
pub struct PythonShares {
    /// The share of waits for Python's global interpreter lock (GIL) in the time of all iterations. This time does
    /// not include waits for requests.
    #[schemars(extend("unit" = "part of 1"))]
    #[serde(rename = "gil_wait_share")]
    pub gil_wait: f64,
    /// The share of Python's garbage collections, on all threads, in the time of all iterations. This time does not
    /// include waits for requests.
    #[schemars(extend("unit" = "part of 1"))]
    #[serde(rename = "gc_share")]
    pub gc: f64,
}

/// Totals over all qualifying iterations, in nanoseconds. The fields `unlike` and `busy_share` are fractions of the
/// time of those iterations that have no recorded kernels.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    pub idle: u64,
    /// The part of `idle` in iterations with recorded kernels.
    pub idle_with_kernels: u64,
    pub gil_wait: u64,
    pub gc: u64,
    /// The share of time that is in iterations with a kind of work of which no kernels were recorded (see
    /// [`WorkClasses`]).
    unlike: f64,
    /// The share of time for which the GPU is busy, in iterations without recorded kernels; `None` if it is unknown.
    /// The share is estimated from iterations with recorded kernels and the same kind of work.
    busy_share: Option<f64>,
}

impl Sum {
    /// Returns the sums over the windows' qualifying iterations; `None` if there are none. Only qualifying iterations
    /// are included in the report's figures.
    pub fn new(windows: &[Window]) -> Option<Self> {
        let all = || windows.iter().flat_map(Window::qualified);
        let iterations = all().count() as u64;
        let time = Quantiles::from_values(all().map(Iteration::busy))?;
        // Recording kernels makes iterations longer. So use iterations without recorded kernels for
        // the host's times, if there are any.
        let is_stretched = all().all(|iteration| iteration.gpu_busy.is_some());
        let host = || all().filter(move |iteration| is_stretched || iteration.gpu_busy.is_none());
        let idle = Quantiles::from_values(host().map(|iteration| iteration.idle))?;
        let wait = Quantiles::from_values(host().map(|iteration| iteration.wait))?;
        let total =
            |of: fn(&Iteration) -> u64| all().fold(0_u64, |sum, i| sum.saturating_add(of(i)));
        let gpu_from = GpuFrom::choose(all);
        let is_measured = gpu_from.is_measured(all());
        let measured = || {
            let some = all().filter(move |_| is_measured);
            some.filter_map(move |one| Some((gpu_from.time(one)?, one.duration)))
        };
        let (gpu, took) = measured().fold((0.0, 0.0), |(gpu, took), (more, long)| {
            (gpu + more as f64, took + long as f64)
        });
        let times = |with: bool| {
            let some = all().filter(move |iteration| iteration.gpu_busy.is_some() == with);
            some.map(Iteration::busy)
        };
        let mean = |sum: u64| sum as f64 / iterations as f64;
        let wall = windows.iter().map(wall).fold(0, u64::saturating_add);
        let between = wall.saturating_sub(windows.iter().map(covered).sum());
        let work = WorkClasses::new(all());
        let totals = Totals {
            idle: total(|iteration| iteration.idle),
            idle_with_kernels: total(|iteration| iteration.gpu_busy.map_or(0, |_| iteration.idle)),
            gil_wait: total(|iteration| iteration.gil_wait),
            gc: total(|iteration| iteration.gc),
            unlike: work.unknown_share(),
            busy_share: work.busy_share(),
        };
        let mut sum = Self {
            iterations,
            per_second: (wall > 0).then(|| iterations as f64 * 1e9 / wall as f64),
            wall,
            between: BetweenIterations {
                mean: between / iterations,
                share: between as f64 / wall.max(1) as f64,
            },
            time,
            host_iterations: host().count() as u64,
            idle,
            gpu: Quantiles::from_values(measured().map(|(gpu, _)| gpu)),
            gpu_from,
            gpu_iterations: measured().count() as u64,
            gpu_share: (took > 0.0).then(|| (gpu / took).min(1.0)),
            gpu_busy: Quantiles::from_values(all().filter_map(|iteration| iteration.gpu_busy)),
            with_kernels: Quantiles::from_values(times(true)),
            without_kernels: Quantiles::from_values(times(false)),
            wait,
            wait_share: 0.0,
            python: PythonShares::default(),
            launches: mean(total(|iteration| u64::from(iteration.launches))),
            calls: mean(total(|iteration| u64::from(iteration.calls))),
            totals,
        };
        sum.python.gil_wait = sum.share(totals.gil_wait);
        sum.python.gc = sum.share(totals.gc);
        Some(sum)
    }

    /// Returns the name, without that of the GPU, and the quantiles of the GPU span, which is the time from an
    /// iteration's first GPU work to its last. Returns `None` if the GPU span was not measured.
    pub fn gpu_span(&self) -> Option<(&'static str, &Quantiles)> {
        let name = match self.gpu_from {
            GpuFrom::Plain => "span",
            GpuFrom::Stretched => "span, stretched",
            GpuFrom::Kernels => return None,
        };
        Some((name, self.gpu.as_ref()?))
    }

    /// Returns the number of iterations in the class for which GPU time was measured: iterations with recorded
    /// kernels, or iterations without. If there is only one of these classes, all iterations are in it.
    pub fn gpu_among(&self) -> u64 {
        match (self.with_kernels, self.without_kernels, self.gpu_from) {
            (Some(_), Some(_), GpuFrom::Plain) => self.host_iterations,
            (Some(_), Some(_), _) => self.iterations - self.host_iterations,
            _ => self.iterations,
        }
    }

    /// Removes the GPU span (the time from an iteration's first GPU work to its last) if its share of the time is less
    /// than `least`, the share of busy time that recorded kernels prove. The span can be too short because it starts at
    /// the first launch and misses a copy before that.
    pub fn withdraw_shorter(&mut self, least: f64) {
        if self.gpu_from != GpuFrom::Kernels && self.gpu_share.is_some_and(|span| span < least) {
            (self.gpu, self.gpu_share, self.gpu_iterations) = (None, None, 0);
        }
    }

    /// Returns true if the recorded kernels also represent the iterations without recorded kernels. That is so if at
    /// most `MAX_UNLIKE` of the time of the iterations without recorded kernels is in iterations with a kind of work
    /// of which no kernels were recorded.
    pub fn is_alike(&self) -> bool {
        self.totals.unlike <= MAX_UNLIKE
    }

    /// Returns the share of time for which the GPU is busy, in iterations without recorded kernels. The share is
    /// estimated from iterations with recorded kernels and the same kind of work. Returns `None` if it cannot be
    /// estimated, because too few iterations do the same kind of work (see [`Self::is_alike`]) or all iterations have
    /// recorded kernels.
    pub fn busy_share(&self) -> Option<f64> {
        self.totals.busy_share.filter(|_| self.is_alike())
    }

    /// Converts a total number to the mean number per iteration.
    #[must_use]
    pub fn a_step(&self, count: u64) -> f64 {
        count as f64 / self.iterations.max(1) as f64
    }

    /// Returns a time in nanoseconds as a fraction of the total time of the qualifying iterations, without their waits
    /// for requests.
    pub fn share(&self, part: u64) -> f64 {
        let all = self.time.mean as f64 * self.iterations as f64;
        if all > 0.0 { part as f64 / all } else { 0.0 }
    }
}

/// Returns the lines below a table of several processes. If the shares in the table are not based on all iterations,
/// these lines say on which iterations the shares are based.
pub(crate) fn of_which<'a>(sums: impl Iterator<Item = &'a Sum> + Clone) -> Vec<&'static str> {
    let any = |is: fn(&Sum) -> bool| sums.clone().any(is);
    let lines = [
        (
            any(|sum| sum.gpu_span().is_some() && sum.gpu_iterations < sum.iterations),
            "GPU span: of the time of the iterations in which it was measured",
        ),
        (
            any(|sum| sum.gpu_span().is_some() && sum.gpu_from == GpuFrom::Stretched),
            "GPU span: recording kernels made the iterations longer in which it was measured",
        ),
        (
            any(|sum| sum.host_iterations < sum.iterations),
            "waits: of the time of the iterations without kernels",
        ),
    ];
    let said = lines.into_iter().filter(|(is_so, _)| *is_so);
    said.map(|(_, line)| line).collect()
}

/// Returns the time that a window covers, in nanoseconds, without gaps where iterations are missing or do not
/// qualify.
fn wall(window: &Window) -> u64 {
    let stretches = window.stretches();
    stretches.fold(0, |sum, (from, until)| (until - from).saturating_add(sum))
}

/// Returns the time in which at least one qualifying iteration of a window was open, in nanoseconds.
fn covered(window: &Window) -> u64 {
    let mut until = 0;
    let part = |iteration: &Iteration| {
        let part = iteration.end().saturating_sub(until.max(iteration.start));
        until = until.max(iteration.end());
        part
    };
    window.qualified().map(part).sum()
}
