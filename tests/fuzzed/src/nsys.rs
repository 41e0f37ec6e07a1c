//! Fuzzes exports of nsys, which are SQLite databases.

use std::fs;
use std::path::Path;

use tllmprof_report::{Process, Report};

use crate::records::fits;
use crate::scratch;

/// Reads a database with any content. The reader either refuses it or makes a report of it.
pub fn nsys(bytes: &[u8]) {
    // The file is in a separate folder, because SQLite may create a log file next to a database.
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
