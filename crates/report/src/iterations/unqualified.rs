//! The iterations inside windows that the report's figures leave out, such as idle iterations, summed by reason.

use schemars::JsonSchema;
use serde::Serialize;

use super::outside::Outside;
use crate::events::qualify::Unqualified;
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;

/// The iterations that the figures of windows leave out.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Others {
    /// The iterations of windows that do not qualify, by reason. With a condition (`TLLMPROF_WHERE`), these are mainly
    /// the iterations that do not satisfy the condition. Without a condition, these are the idle iterations, unless all
    /// iterations are idle. No other figure of windows includes them.
    pub unqualified: Vec<UnqualifiedSum>,
    /// The durations of the iterations outside windows.
    pub outside: Outside,
}

/// The iterations of windows that do not qualify for one reason.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Unqualified")]
pub struct UnqualifiedSum {
    /// The reason why the iterations of this row do not qualify.
    pub why: Unqualified,
    /// The number of iterations that do not qualify for this reason.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The distribution of the durations of the iterations that do not qualify for this reason.
    pub time: Quantiles,
    /// The total duration of the iterations that do not qualify for this reason.
    #[serde(rename = "total_ns")]
    pub total: u64,
}

/// Returns sums over the windows' iterations that the report's figures leave out: one sum for each reason.
pub(crate) fn unqualified(windows: &[Window]) -> Vec<UnqualifiedSum> {
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
