//! Helpers for tests: pages made from records of a simulated engine, and child processes with a
//! time limit.

#![allow(dead_code)] // each test file uses only a part of this module

#[path = "../../../../tests/common/signals.rs"]
mod signals;

use std::fs::{self, File};
use std::io::{BufWriter, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tllmprof_page::Timeline;
use tllmprof_record::Reader;
use tllmprof_report::{Process, Report};

use crate::engine::{self, Engine};

pub(crate) const fn engine(rank: u64) -> Engine {
    Engine {
        rank,
        windows: Vec::new(),
        layers: 4,
        kernels: 20,
        hostile: false,
        experts: 0,
        replaced: false,
        batches: false,
        stacks: 0,
        pauses: false,
        timed: 1,
        scopes: false,
    }
}

/// A report on simulated engines and on the metrics of a GPU during their run, with the timelines
/// of the processes.
pub(crate) struct TestPage {
    pub report: Report,
    pub timelines: Vec<Option<Timeline>>,
}

impl TestPage {
    pub(crate) fn from_engines(engines: &[Engine], room: u64) -> Self {
        let bytes = |engine: &Engine| engine.record().0.bytes();
        let records: Vec<_> = engines.iter().map(bytes).collect();
        Self::from_records(&records, room)
    }

    /// Returns a page made from the records of a job, which must be in the order of their ranks.
    /// `room` is the maximum number of events.
    pub(crate) fn from_records(records: &[Vec<u8>], room: u64) -> Self {
        let read = |bytes: &[u8], name: &str| {
            let reader = Reader::new(bytes).unwrap();
            Process::read(PathBuf::from(name), &reader).unwrap()
        };
        let measured = engine::metrics(200).bytes();
        let mut processes = vec![read(&measured, "gpu")];
        for (place, bytes) in records.iter().enumerate() {
            processes.push(read(bytes, &format!("rank-{place}")));
        }
        let samples = processes[0].metrics.samples.samples.clone();
        let report = Report::new(processes);
        let timelines = report.processes.iter().zip(records);
        let timelines = timelines.map(|(process, bytes)| {
            let reader = Reader::new(&bytes[..]).unwrap();
            let mut timeline = Timeline::read(process, &reader, room).unwrap();
            timeline.measured(process, &samples);
            Some(timeline)
        });
        let timelines = timelines.collect();
        Self { report, timelines }
    }

    /// Returns a page made from a single record. `room` is the maximum number of events.
    pub(crate) fn from_record(bytes: &[u8], name: &str, room: u64) -> Self {
        let reader = Reader::new(bytes).unwrap();
        let process = Process::read(PathBuf::from(name), &reader).unwrap();
        let timeline = Timeline::read(&process, &reader, room).unwrap();
        Self {
            report: Report::new(vec![process]),
            timelines: vec![Some(timeline)],
        }
    }

    /// Returns the report as JSON, in the form of `report --json`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let mut json = Vec::new();
        self.report.json(&mut json).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    pub(crate) fn html(&self) -> Vec<u8> {
        let mut html = Vec::new();
        tllmprof_page::write(&self.report, &self.timelines, &mut html).unwrap();
        html
    }

    /// Writes the page to a folder, and next to it the report as JSON and as text.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        fs::write(folder.join(format!("{name}.html")), self.html()).unwrap();
        fs::write(
            folder.join(format!("{name}.txt")),
            self.report.styled(tllmprof_report::Style::whole()),
        )
        .unwrap();
        let json = File::create(folder.join(format!("{name}.json"))).unwrap();
        self.report.json(&mut BufWriter::new(json)).unwrap();
    }
}

/// Returns an engine's record in which up to 400 random bits are inverted. `seed` selects the bits. The headers of
/// the record and of its first chunk stay intact.
pub(crate) fn damaged(seed: u64) -> Vec<u8> {
    let mut engine = engine(0);
    (engine.windows, engine.scopes) = (vec![(100, 130)], true);
    let mut bytes = engine.record().0.bytes();
    let first = tllmprof_record::HEADER_BYTES + tllmprof_record::CHUNK_HEADER_BYTES;
    // Use a fixed generator (Knuth's MMIX), so that the damage is the same in each run.
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for _ in 0..400 {
        let at = first + next(bytes.len() - first);
        bytes[at] ^= 1 << next(8);
    }
    bytes
}

/// Returns the text of the page's script element with the given ID.
pub(crate) fn element<'a>(html: &'a str, id: &str) -> &'a str {
    let begin = html.find(&format!("id=\"{id}\">")).unwrap();
    let text = &html[begin..];
    let begin = text.find('>').unwrap() + 1;
    &text[begin..text.find("</script>").unwrap()]
}

pub(crate) fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}

/// The exit status and the output of a child process.
pub(crate) struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command until it exits. After the time `limit`, kills it and all processes that it
/// started.
pub(crate) fn finish(command: &mut Command, limit: Duration) -> Ended {
    let mut child = signals::end_with_test(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = reader(child.stdout.take().unwrap());
    let stderr = reader(child.stderr.take().unwrap());
    let code = wait(&mut child, limit);
    let [stdout, stderr] = [stdout, stderr].map(|said| said.join().unwrap());
    assert!(code.is_some(), "{command:?} did not end: {stderr}");
    Ended {
        code: code.flatten(),
        stdout,
        stderr,
    }
}

fn reader(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a child process. Returns its exit code, which is itself `None` if a signal ended the
/// child. After the time `limit`, kills the child and all processes in its group, and returns
/// `None`.
fn wait(child: &mut Child, limit: Duration) -> Option<Option<i32>> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    child.wait().unwrap();
    None
}
