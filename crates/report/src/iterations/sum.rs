//! What the iterations of windows come to.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::iteration::{GpuFrom, Iteration};
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::of_some;

/// Iterations, one after the other.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Sum {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// Iterations in a second; `null`: they took no time.
    #[schemars(extend("unit" = "1/s"))]
    pub per_second: Option<f64>,
    /// The time from the first one's start to the last one's end, summed over windows, without iterations that are missing or
    /// do not qualify.
    #[serde(rename = "wall_ns")]
    pub wall: u64,
    /// How long they took, without waiting for requests.
    pub time: Quantiles,
    /// Of how many iterations `idle`, `wait` and `wait_share` are: those without kernels, where there are such, as recording
    /// kernels makes iterations longer.
    #[schemars(extend("unit" = "iterations"))]
    pub host_iterations: u64,
    /// How long their threads waited for requests.
    pub idle: Quantiles,
    /// How long the GPU was busy in those iterations that `gpu_from` names; `null`: not measured.
    pub gpu: Option<Quantiles>,
    /// What the GPU's time was measured by, and in which iterations.
    pub gpu_from: GpuFrom,
    /// Of how many iterations `gpu` and `gpu_share` are.
    #[schemars(extend("unit" = "iterations"))]
    pub gpu_iterations: u64,
    /// How much of the time of those iterations the GPU was busy; `null`: not measured.
    #[schemars(extend("unit" = "part of 1"))]
    pub gpu_share: Option<f64>,
    /// The same of their time without waiting for requests.
    #[serde(skip)]
    pub gpu_of_busy: Option<f64>,
    /// How long those took in which kernels were recorded, which makes them longer; `null`: there are none.
    pub with_kernels: Option<Quantiles>,
    /// How long those took in which kernels were not recorded; `null`: there are none.
    pub without_kernels: Option<Quantiles>,
    /// How long the iteration's thread waited for the GPU in CUDA calls.
    pub wait: Quantiles,
    /// How much of the time of these iterations that is.
    // By the ledger, where each nanosecond counts once.
    #[schemars(extend("unit" = "part of 1"))]
    pub wait_share: f64,
    /// How much of the time of all iterations, without waiting for requests, their threads waited for the GIL.
    #[schemars(extend("unit" = "part of 1"))]
    pub gil_wait_share: f64,
    /// How much of the same time Python's garbage collections took, on all threads.
    #[schemars(extend("unit" = "part of 1"))]
    pub gc_share: f64,
    /// Launches of kernels and graphs, on all threads.
    #[schemars(extend("unit" = "launches per iteration"))]
    pub launches: f64,
    /// CUDA calls, on all threads.
    #[schemars(extend("unit" = "calls per iteration"))]
    pub calls: f64,
    #[serde(skip)]
    pub totals: Totals,
}

/// Times over all iterations, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    pub idle: u64,
    pub gil_wait: u64,
    pub gc: u64,
}

impl Sum {
    /// Of some windows; `None` where they have no iterations that count.
    pub fn of(windows: &[Window]) -> Option<Self> {
        let all = || windows.iter().flat_map(Window::qualified);
        let iterations = all().count() as u64;
        let time = Quantiles::of(all().map(Iteration::busy))?;
        // Taking kernels stretches iterations.
        let is_stretched = all().all(|iteration| iteration.gpu_busy.is_some());
        let host = || all().filter(move |iteration| is_stretched || iteration.gpu_busy.is_none());
        let idle = Quantiles::of(host().map(|iteration| iteration.idle))?;
        let wait = Quantiles::of(host().map(|iteration| iteration.wait))?;
        let total =
            |of: fn(&Iteration) -> u64| all().fold(0_u64, |sum, i| sum.saturating_add(of(i)));
        let gpu_from = GpuFrom::of(all);
        let measured =
            || all().filter_map(|iteration| Some((gpu_from.time(iteration)?, iteration.duration)));
        let (gpu, took) = measured().fold((0.0, 0.0), |(gpu, took), (more, long)| {
            (gpu + more as f64, took + long as f64)
        });
        let of_measured = all().filter(|iteration| gpu_from.time(iteration).is_some());
        let worked: f64 = of_measured.map(|iteration| iteration.busy() as f64).sum();
        let times = |with: bool| {
            let some = all().filter(move |iteration| iteration.gpu_busy.is_some() == with);
            some.map(Iteration::busy)
        };
        let mean = |sum: u64| sum as f64 / iterations as f64;
        let wall = windows.iter().map(wall).fold(0, u64::saturating_add);
        let totals = Totals {
            idle: total(|iteration| iteration.idle),
            gil_wait: total(|iteration| iteration.gil_wait),
            gc: total(|iteration| iteration.gc),
        };
        let mut sum = Self {
            iterations,
            per_second: (wall > 0).then(|| iterations as f64 * 1e9 / wall as f64),
            wall,
            time,
            host_iterations: host().count() as u64,
            idle,
            gpu: Quantiles::of(measured().map(|(gpu, _)| gpu)),
            gpu_from,
            gpu_iterations: measured().count() as u64,
            gpu_share: (took > 0.0).then(|| (gpu / took).min(1.0)),
            gpu_of_busy: (worked > 0.0).then(|| (gpu / worked).min(1.0)),
            with_kernels: Quantiles::of(times(true)),
            without_kernels: Quantiles::of(times(false)),
            wait,
            wait_share: 0.0,
            gil_wait_share: 0.0,
            gc_share: 0.0,
            launches: mean(total(|iteration| u64::from(iteration.launches))),
            calls: mean(total(|iteration| u64::from(iteration.calls))),
            totals,
        };
        sum.gil_wait_share = sum.share(totals.gil_wait);
        sum.gc_share = sum.share(totals.gc);
        Some(sum)
    }

    /// What the GPU's time is called by where it was measured, and of how many iterations it is, if not of all.
    pub fn gpu_name(&self) -> String {
        let name = match self.gpu_from {
            GpuFrom::Plain => "GPU time",
            GpuFrom::Stretched => "GPU time, stretched",
            GpuFrom::Kernels => "GPU busy by kernels",
        };
        name.to_owned() + &of_some(self.gpu_iterations, self.iterations)
    }

    /// So many in each iteration.
    #[must_use]
    pub fn a_step(&self, count: u64) -> f64 {
        count as f64 / self.iterations.max(1) as f64
    }

    /// A part of the time of the iterations.
    pub fn share(&self, part: u64) -> f64 {
        let all = self.time.mean as f64 * self.iterations as f64;
        if all > 0.0 { part as f64 / all } else { 0.0 }
    }
}

/// Of which iterations shares of processes side by side are, if not of all.
pub fn of_which<'a>(sums: impl Iterator<Item = &'a Sum> + Clone) -> Vec<&'static str> {
    let any = |is: fn(&Sum) -> bool| sums.clone().any(is);
    let lines = [
        (
            any(|sum| sum.gpu.is_some() && sum.gpu_iterations < sum.iterations),
            "GPU: of the time of the iterations whose GPU time was taken (timed)",
        ),
        (
            any(|sum| sum.gpu.is_some() && sum.gpu_from != GpuFrom::Plain),
            "GPU: recording kernels made iterations longer whose GPU time was taken",
        ),
        (
            any(|sum| sum.host_iterations < sum.iterations),
            "waits: of the time of the iterations without kernels",
        ),
    ];
    let said = lines.into_iter().filter(|(is_so, _)| *is_so);
    said.map(|(_, line)| line).collect()
}

/// The time of a window, in nanoseconds.
fn wall(window: &Window) -> u64 {
    let stretches = window.stretches();
    stretches.fold(0, |sum, (from, until)| (until - from).saturating_add(sum))
}
