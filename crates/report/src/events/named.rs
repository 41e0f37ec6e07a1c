//! Totals of events by name.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::tally::Total;

/// Things of one name.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
pub struct Named {
    /// Their name.
    pub name: String,
    /// How many there were.
    #[schemars(extend("unit" = "times"))]
    pub count: u64,
    /// How long they took in all.
    #[serde(rename = "total_ns")]
    pub total: u64,
    /// How long the longest took.
    #[serde(rename = "max_ns")]
    pub longest: u64,
}

impl Named {
    /// How long each took on average.
    #[must_use]
    pub const fn mean(&self) -> u64 {
        match self.total.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

/// Ticks over the whole record in nanoseconds.
pub struct Ns {
    pub rate: f64,
}

impl Ns {
    /// Ticks in nanoseconds.
    pub fn of(&self, ticks: u64) -> u64 {
        if self.rate == 1.0 {
            ticks
        } else {
            (ticks as f64 * self.rate) as u64
        }
    }

    /// A total with its name.
    pub fn named(&self, name: String, total: &Total) -> Named {
        Named {
            name,
            count: total.count,
            total: self.of(total.ticks),
            longest: self.of(total.longest),
        }
    }
}

/// Totals of the same name together, the longest first.
pub fn ranked(named: impl Iterator<Item = Named>) -> Vec<Named> {
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
