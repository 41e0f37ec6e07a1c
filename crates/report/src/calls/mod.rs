//! Activities of the host inside windows, by name: CUDA calls, marked functions and NVTX ranges.

pub(crate) mod text;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::Strings;

use crate::events::facts::{Facts, name, range_name};
use crate::events::named::{Named, Ns, ranked};
use crate::events::tally::Totals;
use crate::events::turnaround::Turnaround;

/// Calls and ranges of the host inside windows, summed by name.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Calls {
    /// CUDA calls inside windows, on all threads, summed by name. The name with the longest total time comes first.
    pub calls: Vec<Named>,
    /// Calls of marked Python functions inside windows, summed by name. The name with the longest total time comes
    /// first.
    pub functions: Vec<Named>,
    /// The program's NVTX ranges inside windows, summed by name. The name with the longest total time comes first.
    pub ranges: Vec<Named>,
    /// GPU idle time after host waits, in nanoseconds.
    #[serde(skip)]
    pub turnaround: Turnaround,
}

impl Calls {
    /// Returns the tables of calls, functions and ranges, built from totals that a pass over the
    /// record collected.
    pub fn new(
        totals: &Totals,
        turnaround: Turnaround,
        facts: &Facts,
        strings: &Strings,
        ns: &Ns,
    ) -> Self {
        let calls = (0..=u8::MAX).zip(totals.calls.iter());
        let calls = calls.filter(|(_, total)| total.count > 0);
        let functions = totals.functions.iter();
        let ranges = totals.ranges.iter();
        Self {
            calls: ranked(calls.map(|(row, total)| ns.named(facts.call(row), total))),
            functions: ranked(functions.map(|(id, total)| ns.named(name(strings.get(*id)), total))),
            ranges: ranked(ranges.map(|((domain, name), total)| {
                ns.named(range_name(strings, *domain, *name), total)
            })),
            turnaround: Turnaround {
                after_waits: ns.convert(turnaround.after_waits),
                after_copies: ns.convert(turnaround.after_copies),
                ..turnaround
            },
        }
    }
}
