//! A report as a single HTML page, which does not use the network.
//!
//! The page consists of a template, a bundle of script and style (`web/dist`, built by `scripts/build-page`), and data.
//! The report and further figures are JSON ([`data`]). For each process, its iterations, the events of its timeline and
//! the table of their kinds are columns ([`columns`]), compressed and in base64. The script only draws: every figure
//! that it prints is in the data.

#![forbid(unsafe_code)]

mod arrivals;
mod buckets;
mod columns;
mod data;
mod html;
mod iterations;
mod names;

mod skew;
mod timeline;
mod track;

use std::io::{self, Write};

use tllmprof_report::Report;

pub use data::schema;
pub use timeline::Timeline;

/// Maximum number of events in the timelines of a page, for all processes together. If the records have more events,
/// the timelines show only some of the iterations.
pub const EVENTS: u64 = 500_000;

/// Writes the page of a report. `timelines` contains the timelines of the report's processes in the
/// same order; the entry is `None` for a process whose source has no events.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write(
    report: &Report,
    timelines: &[Option<Timeline>],
    to: &mut impl Write,
) -> io::Result<()> {
    html::write(report, timelines, to)
}
