//! The page of a report, written to a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tllmprof_nsys::Process as Exported;
use tllmprof_page::{EVENTS, Timeline};
use tllmprof_report::{MetricSample, Process, Recording, Report};

use crate::processes;
use crate::progress::Counted;

/// What was measured of GPUs, by the boot of their machine.
#[derive(Default)]
pub struct Measured(Vec<(String, Vec<MetricSample>)>);

impl Measured {
    /// That of all records that were read, those among them that are of no process.
    pub fn of(processes: &[Process]) -> Self {
        let with = processes
            .iter()
            .filter(|process| !process.metric_samples.is_empty());
        let samples =
            with.map(|process| (process.facts.boot.clone(), process.metric_samples.clone()));
        Self(samples.collect())
    }
}

/// Writes a report's page. It takes its name when it is whole: a page that was there before stays until then.
///
/// # Errors
/// Where it cannot be written.
pub fn write(report: &Report, measured: &Measured, out: &Path) -> io::Result<()> {
    let room = EVENTS / report.processes.len().max(1) as u64;
    let timelines: Vec<_> = report
        .processes
        .iter()
        .map(|process| timeline(process, measured, room))
        .collect();
    let unfinished = unfinished(out);
    let written = private(&unfinished).and_then(|file| {
        let mut file = BufWriter::new(file);
        tllmprof_page::write(report, &timelines, &mut file)?;
        file.flush()?;
        fs::rename(&unfinished, out)
    });
    if written.is_err() {
        // It may never have been there.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Makes a file that its owner alone may read, as records are.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// The events of a process; `None` where what it was read from cannot be read any more.
fn timeline(process: &Process, measured: &Measured, room: u64) -> Option<Timeline> {
    let file = &process.file;
    let timeline = if processes::is_of_nsys(file).ok()? {
        let recorded = tllmprof_nsys::open(file).ok()?;
        let own = |one: &&Exported| Recording::header(*one).pid == process.pid;
        let one = recorded.iter().find(own)?;
        let counted = Counted::new(one, processes::activity("drawing", file), 2 * one.rows());
        Timeline::read(process, &counted, room)
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

/// The name of a page that is being written: beside the other, so that it can be given that one's name.
fn unfinished(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    out.with_file_name(name)
}
