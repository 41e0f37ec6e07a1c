//! Where the time of the mean iteration goes, on the host and on the GPU.

use schemars::JsonSchema;
use serde::Serialize;

use crate::process::Process;
use crate::sum::GpuFrom;

/// Time, and what it is spent on.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Bar {
    /// Whose time it is.
    pub of: BarOf,
    /// What it is spent on. Parts of the host may overlap each other: a garbage collection on one thread and a wait on
    /// another.
    pub parts: Vec<Part>,
}

/// Whose time a bar shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BarOf {
    /// The thread of all iterations.
    Host,
    /// The GPU, by CUDA events around its work, in the iterations that `gpu_from` names.
    GpuEvents,
    /// The GPU, by its kernels and copies, in the iterations in which kernels were recorded.
    GpuKernels,
}

/// What a part of the time is spent on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Part {
    /// What it is spent on.
    pub on: PartOn,
    /// How much of the time that is.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

/// What the host or the GPU spends time on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartOn {
    /// Host: CUDA calls that wait for the device.
    Wait,
    /// Host: Python's garbage collection, on any thread.
    Gc,
    /// Host: waits for the GIL.
    GilWait,
    /// Host: launches, copies and other CUDA calls of the iteration's thread.
    Calls,
    /// Host: everything else.
    Code,
    /// GPU: from its first work to its last, gaps included.
    GpuTime,
    /// GPU: kernels or copies ran.
    Busy,
    /// GPU: between two kernels or copies of one iteration.
    Gaps,
    /// GPU: nothing to do.
    Idle,
}

impl Process {
    /// Where the time of its iterations goes; none where it has no iterations.
    #[must_use]
    pub fn breakdown(&self) -> Vec<Bar> {
        let Some(sum) = self.sum.as_ref().filter(|sum| sum.time.mean > 0) else {
            return Vec::new();
        };
        let host = [
            (PartOn::Wait, sum.share(sum.wait_total)),
            (PartOn::Gc, sum.share(sum.gc_total)),
            (PartOn::GilWait, sum.share(sum.gil_wait_total)),
            (PartOn::Calls, sum.share(sum.calling_total)),
        ];
        let mut bars = vec![bar(BarOf::Host, &host, PartOn::Code)];
        // Kernels show what events bound, so there is one figure of the GPU's time where kernels are all there is.
        if let Some(share) = sum.gpu_share.filter(|_| sum.gpu_from != GpuFrom::Kernels) {
            let parts = [(PartOn::GpuTime, share)];
            bars.push(bar(BarOf::GpuEvents, &parts, PartOn::Idle));
        }
        if let Some(taken) = self.kernel_window.filter(|taken| taken.wall > 0) {
            let parts = [
                (PartOn::Busy, taken.share(taken.busy)),
                (PartOn::Gaps, taken.share(taken.gaps)),
            ];
            bars.push(bar(BarOf::GpuKernels, &parts, PartOn::Idle));
        }
        bars
    }
}

/// A bar of some parts, and what is left of the time.
fn bar(of: BarOf, parts: &[(PartOn, f64)], rest: PartOn) -> Bar {
    let left = 1.0 - parts.iter().map(|(_, share)| share).sum::<f64>();
    let parts = parts.iter().copied().chain([(rest, left.max(0.0))]);
    let parts = parts.map(|(on, share)| Part { on, share }).collect();
    Bar { of, parts }
}
