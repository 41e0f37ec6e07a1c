//! Reads recorded call streams.

use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use tllmprof_learn::Call;

/// A line of a recorded call stream: a mark or a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// The beginning of a true iteration, as the recorded program marked it. The learner never receives marks.
    Mark,
    /// A call: the thread that makes it, the call, and its time in nanoseconds.
    Call(u32, Call, u64),
    /// A call that the learner does not use.
    Other,
}

/// Returns the records of the stream in this file.
pub(crate) fn read(path: &str) -> Vec<Record> {
    let mut text = String::new();
    GzDecoder::new(File::open(path).expect(path))
        .read_to_string(&mut text)
        .expect(path);
    text.lines().skip(1).map(record).collect()
}

fn record(line: &str) -> Record {
    let fields: Vec<_> = line.split(',').collect();
    if fields[2] == "mark" {
        return Record::Mark;
    }
    let kernel = || u64::from_str_radix(&fields[3][1..], 16).map(|kernel| kernel + (1 << 32));
    match Call::recorded(fields[2], kernel).unwrap() {
        Some(call) => Record::Call(fields[1].parse().unwrap(), call, fields[0].parse().unwrap()),
        None => Record::Other,
    }
}
