//! What nsys exports: SQLite databases.

use std::fs;

use tllmprof_report::{Process, Report};

use crate::records::fits;
use crate::scratch;

/// Whatever a database holds, it is refused or there is a report on it.
pub fn nsys(bytes: &[u8]) {
    // SQLite leaves files of its own beside one that says that it has a log.
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let file = folder.path().join("export");
    fs::write(&file, bytes).expect("to write");
    let Ok(processes) = tllmprof_nsys::open(&file) else {
        return;
    };
    let read = processes
        .iter()
        .filter_map(|process| Process::read("export".into(), process).ok());
    fits(&Report::new(read.collect()));
}
