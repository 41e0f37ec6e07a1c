//! What nsys exports: SQLite databases.

use std::io::Write;
use std::path::Path;

use tllmprof_report::{Process, Report};

use crate::records::fits;

/// Whatever a database holds, it is refused or there is a report on it.
pub fn nsys(bytes: &[u8]) {
    // In memory, where there is such a folder.
    let memory = Path::new("/dev/shm");
    let mut file = match memory.is_dir() {
        true => tempfile::NamedTempFile::new_in(memory),
        false => tempfile::NamedTempFile::new(),
    }
    .expect("a file");
    file.write_all(bytes).expect("to write");
    let Ok(processes) = tllmprof_nsys::open(file.path()) else {
        return;
    };
    let read = processes
        .iter()
        .filter_map(|process| Process::read("export".into(), process).ok());
    fits(&Report::new(read.collect()));
}
