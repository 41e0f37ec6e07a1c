//! What the iterations of windows come to.

use crate::events::iteration::{GpuFrom, Iteration};
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::of_some;

/// What some iterations, one after the other, come to.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    pub iterations: u64,
    /// From the first one's start to the last one's end, in nanoseconds, over all windows. Iterations that do not
    /// count take none of it.
    pub wall: u64,
    /// Without waiting for requests.
    pub time: Quantiles,
    /// How many iterations `idle` and `wait` are of: those that the ledger of the host is of.
    pub host_iterations: u64,
    /// Waiting for requests.
    pub idle: Quantiles,
    pub idle_total: u64,
    /// GPU time, of the iterations that `gpu_from` names.
    pub gpu: Option<Quantiles>,
    pub gpu_from: GpuFrom,
    /// How many those are.
    pub gpu_iterations: u64,
    /// What the GPU was at work of those iterations' time.
    pub gpu_share: Option<f64>,
    /// The same of their time without waiting for requests.
    pub gpu_of_busy: Option<f64>,
    /// Of the iterations in which kernels were taken, which stretches them, and of the others.
    pub with_kernels: Option<Quantiles>,
    pub without_kernels: Option<Quantiles>,
    pub wait: Quantiles,
    /// Per iteration.
    pub launches: f64,
    pub calls: f64,
    /// Nanoseconds in all.
    pub wait_total: u64,
    pub gil_wait_total: u64,
    pub gc_total: u64,
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
        Some(Self {
            iterations,
            wall: windows.iter().map(wall).fold(0, u64::saturating_add),
            time,
            host_iterations: host().count() as u64,
            idle,
            idle_total: total(|iteration| iteration.idle),
            gpu: Quantiles::of(measured().map(|(gpu, _)| gpu)),
            gpu_from,
            gpu_iterations: measured().count() as u64,
            gpu_share: (took > 0.0).then(|| (gpu / took).min(1.0)),
            gpu_of_busy: (worked > 0.0).then(|| (gpu / worked).min(1.0)),
            with_kernels: Quantiles::of(times(true)),
            without_kernels: Quantiles::of(times(false)),
            wait,
            launches: mean(total(|iteration| u64::from(iteration.launches))),
            calls: mean(total(|iteration| u64::from(iteration.calls))),
            wait_total: total(|iteration| iteration.wait),
            gil_wait_total: total(|iteration| iteration.gil_wait),
            gc_total: total(|iteration| iteration.gc),
        })
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

    /// Iterations a second.
    pub fn rate(&self) -> Option<f64> {
        (self.wall > 0).then(|| self.iterations as f64 * 1e9 / self.wall as f64)
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
