//! The iterations of windows that do not count in figures, by reason.

use schemars::JsonSchema;
use serde::Serialize;

use super::outside::Outside;
use crate::events::qualify::Unqualified;
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;

/// The iterations that are in no figure of windows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Others {
    /// The iterations of windows that do not qualify. With a condition these are the iterations that do not satisfy it;
    /// without one, the idle iterations, unless all are idle. No other figure of windows includes them.
    pub unqualified: Vec<UnqualifiedSum>,
    /// The iterations outside windows.
    pub outside: Outside,
}

/// The iterations that do not count for one reason.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Unqualified")]
pub struct UnqualifiedSum {
    /// The reason why they do not qualify.
    pub why: Unqualified,
    /// The number of these iterations.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// Quantiles of the time that they took.
    pub time: Quantiles,
    /// The total time that they took.
    #[serde(rename = "total_ns")]
    pub total: u64,
}

/// Returns sums over the iterations of these windows that do not qualify, one for each reason.
pub fn unqualified(windows: &[Window]) -> Vec<UnqualifiedSum> {
    let sum = |why| {
        let all = windows.iter().flat_map(|window| &window.iterations);
        let times = all.filter(|iteration| iteration.unqualified == Some(why));
        let times: Vec<_> = times.map(|iteration| iteration.duration).collect();
        Some(UnqualifiedSum {
            why,
            iterations: times.len() as u64,
            total: times.iter().fold(0, |sum, time| time.saturating_add(sum)),
            time: Quantiles::from_values(times)?,
        })
    };
    Unqualified::ALL.into_iter().filter_map(sum).collect()
}
