//! Shares of the time in which GPUs work. The time in which a GPU is busy is known only from
//! recorded kernels or from the GPU's metrics.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::iteration::GpuFrom;
use crate::events::origin::SMALL_COST;
use crate::iterations::sum::Sum;
use crate::kernels::{KernelSum, Kernels};
use crate::process::state::State;

/// Assumed maximum ratio of an iteration's time with recorded kernels to its time without recorded kernels. The upper
/// limit of the busy share is computed from this ratio. It was measured on an H200 with CUDA graphs of tiny kernels.
const MAX_SLOWDOWN: f64 = 1.7;

/// Maximum excess of the GPU's busy time over the GPU span (the time from the first GPU work of an iteration to its
/// last), as a fraction of the iterations' time. Within this limit, the excess is a measurement error.
const BUSY_TOLERANCE: f64 = 0.01;

/// The shares of time in which the GPUs of a process worked.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct GpuTime {
    /// The share of the iterations' time between their first GPU work and their last, as measured by CUDA events, with
    /// the gaps between kernels. `null` if it was not measured.
    #[serde(rename = "gpu_span_share")]
    #[schemars(extend("unit" = "part of 1"))]
    pub span: Option<f64>,
    /// The share of the iterations' time in which at least one kernel or copy ran, on the GPU that was busy longest, from
    /// recorded kernels; `null` if it was not measured. Recording kernels makes iterations longer, so the busy time is
    /// divided by the duration of iterations without recorded kernels, if enough of them do the same work.
    #[serde(rename = "gpu_busy_share")]
    #[schemars(extend("unit" = "part of 1"))]
    pub share: Option<f64>,
    /// The GPUs that the process used.
    pub gpus: Vec<GpuSum>,
    /// The number of the GPU that was busy longest; `null` if no work of a GPU was measured. `gpu_span_share`,
    /// `gpu_busy_share`, `ledger.gpu` and the GPU times of iterations are those of this GPU.
    #[serde(rename = "busiest_gpu")]
    pub busiest: Option<u8>,
    #[serde(skip)]
    pub busy: Option<Busy>,
}

/// A GPU, and the time that it worked in the iterations in which kernels were recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Gpu")]
pub struct GpuSum {
    /// The number of the GPU in the process, counted from 0.
    pub device: u32,
    /// The model name of the GPU; empty if it is not known.
    pub name: String,
    /// The time in which at least one kernel ran on the GPU; `null` if it was not measured.
    pub kernel_ns: Option<u64>,
    /// The time in which at least one kernel or copy ran on the GPU; `null` if it was not measured.
    pub busy_ns: Option<u64>,
}

/// The share of the time in which a GPU is busy, and the way in which it is known.
#[derive(Clone, Copy, Debug)]
pub enum Busy {
    /// The share was computed from recorded kernels. It is a share of the time of iterations that
    /// are not slowed down by the recording.
    ByKernels(f64),
    /// The lower and the upper limit of the share, computed from recorded kernels. Only limits are
    /// known if the recording slowed down all iterations, or if the iterations without recorded
    /// kernels do different work. The lower limit is the share of the time as recorded.
    Between(f64, f64),
    /// The share was measured by the GPU's own metrics.
    Sampled(f64),
}

impl Busy {
    /// Returns the share; if only limits are known, the upper limit.
    pub const fn most(self) -> f64 {
        match self {
            Self::ByKernels(share) | Self::Between(_, share) | Self::Sampled(share) => share,
        }
    }

    /// Returns the share to show; if only limits are known, the lower limit.
    pub const fn share(self) -> f64 {
        match self {
            Self::ByKernels(share) | Self::Between(share, _) | Self::Sampled(share) => share,
        }
    }
}

impl GpuTime {
    /// Returns the GPU times of a process. `names` contains the names of its GPUs by their numbers, and `busiest` is the
    /// number of the GPU that was busy longest. `cost` is an estimate of the share of time that another profiler's
    /// recording took. A GPU span that is shorter than the busy time is wrong and is removed from `sum`.
    pub fn new(
        mut sum: Option<&mut Sum>,
        kernels: &Kernels,
        (names, busiest): (&[String], Option<u8>),
        state: State,
        cost: Option<f64>,
    ) -> Self {
        let busy = sum.as_ref().and_then(|sum| busy(sum, kernels, state, cost));
        if let (Some(sum), Some(busy)) = (&mut sum, busy) {
            sum.withdraw_shorter(busy.share() - BUSY_TOLERANCE);
        }
        let sum = sum.as_deref();
        let span = sum.filter(|sum| sum.gpu_from != GpuFrom::Kernels);
        Self {
            span: span.and_then(|sum| sum.gpu_share),
            share: busy.map(Busy::share),
            gpus: gpus(kernels, names),
            busiest,
            busy,
        }
    }

    /// Returns the number of the GPU whose times the report shows, if the process used several GPUs; otherwise `None`.
    pub fn numbered(&self) -> Option<u8> {
        self.busiest.filter(|_| self.gpus.len() > 1)
    }

    /// Returns the label for the GPU whose times the report shows: with its number if the process used several GPUs.
    pub fn label(&self) -> String {
        let number = self.numbered();
        number.map_or_else(|| "GPU".to_owned(), |device| format!("GPU {device}"))
    }

    /// Returns the label for the GPU's busy time in reports.
    pub fn busy_name(&self) -> String {
        let stretched = match self.busy {
            Some(Busy::Between(..)) => ", stretched",
            _ => "",
        };
        format!("{} busy{stretched}", self.label())
    }
}

fn gpus(kernels: &Kernels, names: &[String]) -> Vec<GpuSum> {
    let measured = kernels.devices.iter().map(|sum| u32::from(sum.device));
    let count = measured.map(|device| device + 1).max().unwrap_or(0);
    let all = 0..count.max(names.len() as u32);
    let has_times = kernels.has_times();
    let all = all.filter_map(|device| {
        let mut sums = kernels.devices.iter();
        let sum = sums.find(|sum| u32::from(sum.device) == device);
        let name = names.get(device as usize).cloned().unwrap_or_default();
        let is_used = sum.is_some() || !name.is_empty();
        let sum = sum.filter(|_| has_times);
        is_used.then(|| GpuSum {
            device,
            name,
            kernel_ns: sum.map(|sum| sum.kernels),
            busy_ns: sum.map(|sum| sum.busy),
        })
    });
    all.collect()
}

/// Returns the share of time in which the GPU is busy, computed from recorded kernels; `None` if the record has no
/// times of kernels, if too many kernels are missing, or if the record is damaged.
fn busy(sum: &Sum, kernels: &Kernels, state: State, cost: Option<f64>) -> Option<Busy> {
    let taken = kernels.window.as_ref()?;
    // A busy time of 0 means that the driver did not report when kernels ran, so the busy time is
    // unknown.
    let busy = taken.busy.filter(|busy| *busy > 0)?;
    // If kernels are missing, the GPU would seem idle at times at which it was busy, so the share is unknown.
    if taken.wall == 0 || !is_whole(taken, state) {
        return None;
    }
    let of = |wall: f64| (busy as f64 / wall).min(1.0);
    let wall = taken.wall.saturating_add(sum.totals.idle_with_kernels) as f64;
    Some(match sum.without_kernels {
        _ if cost.is_some_and(|cost| cost <= SMALL_COST) => Busy::ByKernels(of(wall)),
        None if cost.is_some() => {
            let cost = cost.unwrap_or(0.0).min(1.0);
            Busy::Between(of(wall), of(wall * (1.0 - cost)))
        }
        _ => match sum.busy_share() {
            Some(share) => Busy::ByKernels(share),
            None => Busy::Between(of(wall), of(wall / MAX_SLOWDOWN)),
        },
    })
}

/// Returns false if too many kernels are missing, or if the record is damaged. The GPU would then seem idle at times at
/// which it was busy.
pub(crate) fn are_whole(kernels: &Kernels, state: State) -> bool {
    kernels
        .window
        .as_ref()
        .is_none_or(|taken| is_whole(taken, state))
}

/// Returns true if the recorded kernels are complete enough to compute busy time: the record is not damaged, and at
/// most about 1 % of the kernels are missing.
fn is_whole(taken: &KernelSum, state: State) -> bool {
    state != State::Damaged && taken.dropped <= taken.kernels / 100
}
