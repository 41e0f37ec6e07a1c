//! The profiler that recorded a process, and the kinds of data that it did not record.

use schemars::JsonSchema;
use serde::Serialize;

use super::window::Window;

/// Maximum share of the time that recording may take, as a fraction, before the report warns that
/// the figures are affected.
pub(crate) const SMALL_COST: f64 = 0.1;

/// The profiler that recorded a process, if it was not tllmprof.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
pub struct Origin {
    /// The profiler's name and version, such as `nsys 2026.2.1`; empty for tllmprof.
    pub tool: String,
    /// The types of data that the profiler did not record.
    pub lacks: Vec<Data>,
    /// An estimate of the time that the profiler's recording took on the process's threads; `null` if there is no
    /// estimate.
    #[serde(rename = "cost_ns")]
    pub cost: Option<u64>,
}

/// A type of data that findings need and that another profiler may not record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// Calls of CUDA functions.
    Calls,
    /// Kernels and copies on the GPU.
    Gpu,
    /// Iterations. If a trace has none, the report shows the whole trace as one iteration.
    Iterations,
}

impl Data {
    /// Returns the reason why findings that need this data are unknown.
    pub const fn missing(self) -> &'static str {
        match self {
            Self::Calls => "CUDA calls were not recorded",
            Self::Gpu => "the GPU's work was not recorded",
            Self::Iterations => "no iterations were found in the trace",
        }
    }

    /// Returns advice on how to record this data, such as `record CUDA calls, too`, and a short name of the data to
    /// record.
    pub const fn to_know(self) -> (&'static str, &'static str) {
        match self {
            Self::Calls => ("record CUDA calls, too", "CUDA calls"),
            Self::Gpu => ("record the GPU's work, too", "GPU work"),
            Self::Iterations => ("name a range or a call by --step", "iterations (--step)"),
        }
    }
}

impl Origin {
    /// Returns true if tllmprof recorded the process.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.tool.is_empty()
    }

    /// Returns `self` if another profiler than tllmprof recorded the process, otherwise `known`. `self` comes from the
    /// format of the file, and `known` comes from the entries of the record.
    #[must_use]
    pub fn or(self, known: &Self) -> Self {
        if self.is_own() { known.clone() } else { self }
    }

    /// Returns the estimated share of the windows' time that recording took, as a fraction; `None`
    /// if there is no estimate.
    #[must_use]
    pub fn cost_share(&self, windows: &[Window]) -> Option<f64> {
        let wall = windows.iter().map(Window::wall);
        let wall = wall.fold(0, u64::saturating_add);
        let cost = self.cost.filter(|_| wall > 0)?;
        Some(cost as f64 / wall as f64)
    }

    /// Returns true if the profiler did not record this data.
    #[must_use]
    pub fn lacks(&self, data: Data) -> bool {
        self.lacks.contains(&data)
    }
}
