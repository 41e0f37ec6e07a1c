//! Writes a report as an HTML page.

use std::io::{BufWriter, Write};

use anyhow::Result;
use tllmprof_export::Output;
use tllmprof_nsys::ExportProcess;
use tllmprof_page::{EVENTS, Timeline};
use tllmprof_report::{MetricSample, Process, Recording, Report, may_be_one_run};

use crate::chosen::Chosen;
use crate::processes::ReadOptions;
use crate::progress::Counted;
use crate::{output, parallel, processes, traces};

/// The samples of GPU metrics of all records that have such samples.
#[derive(Default)]
pub(crate) struct Measured(Vec<MeasuredRecord>);

/// The samples of GPU metrics of a record.
struct MeasuredRecord {
    /// The boot ID, which identifies the machine.
    boot: String,
    run: String,
    pid: u32,
    /// True if the record contains only metrics, and belongs to no process of the program.
    is_alone: bool,
    samples: Vec<MetricSample>,
}

impl MeasuredRecord {
    /// Returns true if the report on a process uses the samples of this record. Each record numbers the GPUs in its own
    /// way, so the page must not draw the samples of other records.
    fn is_for(&self, process: &Process) -> bool {
        let is_here = !self.boot.is_empty() && self.boot == process.facts.boot;
        let is_chosen = match process.metrics.sampler {
            _ if self.pid == process.pid => true,
            Some(sampler) => self.is_alone && self.pid == sampler,
            None => self.is_alone,
        };
        is_here && may_be_one_run(&self.run, &process.facts.run) && is_chosen
    }
}

impl Measured {
    /// Collects the GPU metrics of all records, including records that contain only metrics and belong to no process
    /// of the program.
    pub(crate) fn from_processes(processes: &[Process]) -> Self {
        let with = processes
            .iter()
            .filter(|process| !process.metrics.samples.samples.is_empty());
        let records = with.map(|process| MeasuredRecord {
            boot: process.facts.boot.clone(),
            run: process.facts.run.clone(),
            pid: process.pid,
            is_alone: process.is_metrics_alone(),
            samples: process.metrics.samples.samples.clone(),
        });
        Self(records.collect())
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
    let records = measured.0.iter().filter(|one| one.is_for(process));
    timeline.measured(process, records.flat_map(|one| &one.samples));
    Some(timeline)
}
