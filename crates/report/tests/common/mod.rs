pub(crate) mod job;
pub(crate) mod server;

use std::path::PathBuf;

use serde_json::Value;
use server::Server;
use tllmprof_record::Reader;
use tllmprof_report::{Process, Report};

/// Reads a process from the bytes of a record.
pub(crate) fn process(name: &str, bytes: &[u8]) -> Process {
    let reader = Reader::new(bytes).unwrap();
    Process::read(PathBuf::from(name), &reader).unwrap()
}

/// Returns the report on those ranks of the simulated server whose numbers are in `ranks`.
pub(crate) fn ranks(ranks: &[u64]) -> Report {
    let processes = ranks.iter().map(|rank| {
        let bytes = Server::rank(*rank).record().0.bytes();
        process(&format!("tllmprof-gpu7-{rank}.tllmprof"), &bytes)
    });
    Report::new(processes.collect())
}

/// Returns a report as JSON. Checks that the written text ends with a newline.
pub(crate) fn json(report: &Report) -> Value {
    let mut bytes = Vec::new();
    report.json(&mut bytes).unwrap();
    assert!(bytes.ends_with(b"\n"));
    serde_json::from_slice(&bytes).unwrap()
}

/// Checks that a text has at most `lines` lines, and that no line is wider than a screen of 80 characters.
pub(crate) fn fits(text: &str, lines: usize) {
    assert!(text.lines().count() <= lines, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}
