//! The iterations that do not count.

use schemars::JsonSchema;
use serde::Serialize;

use super::outside::Outside;
use crate::events::qualify::Unqualified;
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;

/// The iterations that no figure of windows includes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Others {
    /// The iterations of windows that do not qualify: with a condition those that do not satisfy it, without one the idle
    /// ones, unless all are. No other figure of windows includes them.
    pub unqualified: Vec<UnqualifiedSum>,
    /// The iterations outside windows.
    pub outside: Outside,
}

/// Iterations that do not count, for one reason.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Unqualified")]
pub struct UnqualifiedSum {
    /// Why they do not qualify.
    pub why: Unqualified,
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// How long they took.
    pub time: Quantiles,
    /// How long they took in all.
    #[serde(rename = "total_ns")]
    pub total: u64,
}

/// Those of some windows that do not count.
pub fn unqualified(windows: &[Window]) -> Vec<UnqualifiedSum> {
    let sum = |why| {
        let all = windows.iter().flat_map(|window| &window.iterations);
        let times = all.filter(|iteration| iteration.unqualified == Some(why));
        let times: Vec<_> = times.map(|iteration| iteration.duration).collect();
        Some(UnqualifiedSum {
            why,
            iterations: times.len() as u64,
            total: times.iter().fold(0, |sum, time| time.saturating_add(sum)),
            time: Quantiles::of(times)?,
        })
    };
    Unqualified::ALL.into_iter().filter_map(sum).collect()
}
