//! The page of a report, written to a file.

use std::io::{BufWriter, Write};

use anyhow::Result;
use tllmprof_export::Output;
use tllmprof_nsys::{Process as Exported, Scopes};
use tllmprof_page::{EVENTS, Timeline};
use tllmprof_report::{MetricSample, Process, Recording, Report};

use crate::chosen::Chosen;
use crate::progress::Counted;
use crate::{parallel, processes};

/// What was measured of GPUs, by the boot of their machine.
#[derive(Default)]
pub struct Measured(Vec<(String, Vec<MetricSample>)>);

impl Measured {
    /// That of all records that were read, those among them that are of no process.
    pub fn of(processes: &[Process]) -> Self {
        let with = processes
            .iter()
            .filter(|process| !process.metrics.samples.is_empty());
        let samples =
            with.map(|process| (process.facts.boot.clone(), process.metrics.samples.clone()));
        Self(samples.collect())
    }
}

/// Writes a report's page: it is there whole or not at all. `are_some`: the processes have some of their records' windows.
/// Kernels of nsys exports get their layers by `scopes`.
///
/// # Errors
/// Where it cannot be written.
pub fn write(
    report: &Report,
    measured: &Measured,
    target: Output,
    are_some: bool,
    scopes: Option<&Scopes>,
) -> Result<()> {
    let room = EVENTS / report.processes.len().max(1) as u64;
    let timelines = parallel::each(&report.processes, |process| {
        timeline(process, measured, room, are_some, scopes)
    });
    let mut file = BufWriter::new(target.file()?);
    tllmprof_page::write(report, &timelines, &mut file)?;
    file.flush()?;
    Ok(target.keep()?)
}

/// The events of a process; `None` where what it was read from cannot be read any more.
fn timeline(
    process: &Process,
    measured: &Measured,
    room: u64,
    are_some: bool,
    scopes: Option<&Scopes>,
) -> Option<Timeline> {
    let file = &process.file;
    let timeline = if processes::is_of_nsys(file).ok()? {
        let recorded = processes::exported(file, scopes).ok()?;
        let own = |one: &&Exported| Recording::header(*one).pid == process.pid;
        let one = recorded.iter().find(own)?;
        let counted = Counted::new(one, processes::activity("drawing", file), 2 * one.rows());
        Timeline::read(process, &counted, room)
    } else if are_some {
        let firsts: Vec<_> = process.windows.iter().map(|window| window.first).collect();
        let chosen = Chosen::new(processes::open(file, "drawing").ok()?, &firsts, false).ok()?;
        Timeline::read(process, &chosen, room)
    } else {
        Timeline::read(process, &processes::open(file, "drawing").ok()?, room)
    };
    let mut timeline = timeline.ok()?;
    let is_here =
        |(boot, _): &&(String, Vec<MetricSample>)| !boot.is_empty() && *boot == process.facts.boot;
    let samples = measured.0.iter().filter(is_here);
    timeline.measured(process, samples.flat_map(|(_, samples)| samples));
    Some(timeline)
}
