//! What records show, as one page of HTML that asks nothing of a network.
//!
//! The page is a template, a bundle of script and style (`web/dist`, made by `scripts/build-page`), and
//! data: the report and more figures as JSON ([`data`]), and for each process its iterations and the events
//! of its timeline as columns ([`columns`]), compressed and in base64, with the table of their kinds. The script draws; every figure it
//! prints is in the data.

#![forbid(unsafe_code)]

mod arrivals;
mod columns;
mod data;
mod html;
mod iterations;
mod names;
mod shown;
mod skew;
mod timeline;
mod track;

use std::io::{self, Write};

use tllmprof_report::Report;

pub use data::schema;
pub use timeline::Timeline;

/// How many events the timelines of a page have, at most, over all its processes.
pub const EVENTS: u64 = 500_000;

/// Writes the page of a report. `timelines` are those of its processes, in their order; `None`: what the
/// process was read from has no events.
///
/// # Errors
/// Where it cannot be written.
pub fn write(
    report: &Report,
    timelines: &[Option<Timeline>],
    to: &mut impl Write,
) -> io::Result<()> {
    html::write(report, timelines, to)
}
