#![allow(dead_code)] // each test file uses its part

pub mod server;

use std::path::PathBuf;

use server::Server;
use tllmprof_record::Reader;
use tllmprof_report::{Process, Report};

/// What a record's bytes show.
pub fn process(name: &str, bytes: &[u8]) -> Process {
    let reader = Reader::new(bytes).unwrap();
    Process::read(PathBuf::from(name), &reader).unwrap()
}

/// The report on some ranks of the server.
pub fn ranks(ranks: &[u64]) -> Report {
    let processes = ranks.iter().map(|rank| {
        let bytes = Server::rank(*rank).record().0.bytes();
        process(&format!("tllmprof-gpu7-{rank}.tllmprof"), &bytes)
    });
    Report::new(processes.collect())
}
