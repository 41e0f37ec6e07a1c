//! Writes a report as an HTML page.

use std::io::{BufWriter, Write};

use anyhow::Result;
use tllmprof_export::Output;
use tllmprof_nsys::ExportProcess;
use tllmprof_page::{EVENTS, Timeline};
use tllmprof_report::{MetricSample, Process, Recording, Report};

use crate::chosen::Chosen;
use crate::processes::ReadOptions;
use crate::progress::Counted;
use crate::{output, parallel, processes, traces};

/// Samples of GPU metrics for each machine, which is identified by its boot ID.
#[derive(Default)]
pub(crate) struct Measured(Vec<(String, Vec<MetricSample>)>);

impl Measured {
    /// Collects the GPU metrics of all records, including records that contain only metrics and belong to no process
    /// of the program.
    pub(crate) fn from_processes(processes: &[Process]) -> Self {
        let with = processes
            .iter()
            .filter(|process| !process.metrics.samples.samples.is_empty());
        let samples = with.map(|process| {
            (
                process.facts.boot.clone(),
                process.metrics.samples.samples.clone(),
            )
        });
        Self(samples.collect())
    }
}

/// Writes a report's page to a file, or to standard output if there is no target. If writing fails, no incomplete file
/// is left. `are_some` means that the processes contain only some of the windows (ranges of captured iterations) of
/// their records.
///
/// # Errors
/// The page cannot be written.
pub(crate) fn write(
    report: &Report,
    measured: &Measured,
    target: Option<Output>,
    are_some: bool,
    reading: ReadOptions<'_>,
) -> Result<()> {
    let room = EVENTS / report.processes.len().max(1) as u64;
    let timelines = parallel::each(&report.processes, |process| {
        timeline(process, measured, room, are_some, reading)
    });
    let Some(target) = target else {
        return Ok(output::write(|to| {
            tllmprof_page::write(report, &timelines, to)
        })?);
    };
    let mut file = BufWriter::new(target.file()?);
    tllmprof_page::write(report, &timelines, &mut file)?;
    file.flush()?;
    Ok(target.keep()?)
}

/// Reads at most `room` events of a process for the page's timeline. Returns `None` if the process's file can no longer
/// be read.
fn timeline(
    process: &Process,
    measured: &Measured,
    room: u64,
    are_some: bool,
    reading: ReadOptions<'_>,
) -> Option<Timeline> {
    let file = &process.file;
    let timeline = if processes::is_json(file).ok()? {
        let activity = processes::activity("drawing", file);
        let trace = traces::read(file, reading.step, Some(activity)).ok()?;
        Timeline::read(process, &trace, room)
    } else if processes::is_of_nsys(file).ok()? {
        let recorded = processes::exported(file, reading).ok()?;
        let own = |one: &&ExportProcess| Recording::header(*one).pid == process.pid;
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
