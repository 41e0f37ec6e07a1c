//! Exports of nsys: SQLite databases.

use std::fs;
use std::path::Path;

use tllmprof_report::{Process, Report};

use crate::records::fits;
use crate::scratch;

/// A database with any content is refused or gets a report.
pub fn nsys(bytes: &[u8]) {
    // SQLite creates files next to a database that says that it has a log.
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let file = folder.path().join("export");
    fs::write(&file, bytes).expect("to write");
    let Ok(processes) = tllmprof_nsys::open(&file, Path::new("nsys"), None) else {
        return;
    };
    let read = processes
        .iter()
        .filter_map(|process| Process::read("export".into(), process).ok());
    fits(&Report::new(read.collect()));
}
