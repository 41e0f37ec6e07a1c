//! Totals (number and time) of events that have the same name.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::tally::Total;

/// The events that have one name, such as the calls of one CUDA function.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
pub struct Named {
    /// The name of the events.
    pub name: String,
    /// The number of events with this name.
    #[schemars(extend("unit" = "times"))]
    pub count: u64,
    /// The total duration of the events with this name.
    #[serde(rename = "total_ns")]
    pub total: u64,
    /// The duration of the longest event with this name.
    #[serde(rename = "max_ns")]
    pub longest: u64,
}

impl Named {
    /// Returns the mean time of one event in nanoseconds; 0 if there are no events.
    #[must_use]
    pub const fn mean(&self) -> u64 {
        match self.total.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

/// Conversion of ticks to nanoseconds. `rate` is the mean length of a tick of the record's clock, in nanoseconds.
pub struct Ns {
    pub rate: f64,
}

impl Ns {
    /// Converts a number of ticks to nanoseconds.
    pub fn convert(&self, ticks: u64) -> u64 {
        if self.rate == 1.0 {
            ticks
        } else {
            (ticks as f64 * self.rate) as u64
        }
    }

    /// Returns a total in nanoseconds with its name. `total` is in ticks.
    pub fn named(&self, name: String, total: &Total) -> Named {
        Named {
            name,
            count: total.count,
            total: self.convert(total.ticks),
            longest: self.convert(total.longest),
        }
    }
}

/// Returns totals by name, sorted by total time, the largest first. Totals with the same name are added up.
pub(crate) fn ranked(named: impl Iterator<Item = Named>) -> Vec<Named> {
    let mut by_name: HashMap<String, Named> = HashMap::new();
    for more in named {
        let Named {
            count,
            total,
            longest,
            ..
        } = more;
        let sum = by_name.entry(more.name.clone()).or_insert_with(|| Named {
            name: more.name,
            ..Named::default()
        });
        sum.count += count;
        sum.total = sum.total.saturating_add(total);
        sum.longest = sum.longest.max(longest);
    }
    let mut ranked: Vec<_> = by_name.into_values().collect();
    ranked.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    ranked
}
