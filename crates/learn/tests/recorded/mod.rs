//! Reads recorded call streams.

use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use tllmprof_learn::{Call, Wait};

/// A line of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A true iteration begins. The learner is never told.
    Mark,
    /// By this thread.
    Call(u32, Call),
    /// A call that the learner has no use for.
    Other,
}

/// The stream in a file.
pub fn read(path: &str) -> Vec<Record> {
    let mut text = String::new();
    GzDecoder::new(File::open(path).expect(path))
        .read_to_string(&mut text)
        .expect(path);
    text.lines().skip(1).map(record).collect()
}

fn record(line: &str) -> Record {
    let fields: Vec<_> = line.split(',').collect();
    let kernel = || u64::from_str_radix(&fields[3][1..], 16).unwrap() + (1 << 32);
    let call = match fields[2] {
        "mark" => return Record::Mark,
        "launch" | "launch_ex" | "launch_cooperative" => Call::Launch(kernel()),
        "graph_launch" => Call::GraphLaunch,
        "memcpy_dtoh_async" => Call::CopyToHost,
        "memcpy_htod_async" => Call::CopyToDevice,
        "stream_sync_end" => Call::Returned(Wait::Stream),
        "event_sync_end" => Call::Returned(Wait::Event),
        "ctx_sync_end" => Call::Returned(Wait::Context),
        "memcpy_dtoh_end" => Call::Returned(Wait::CopyToHost),
        "begin_capture" => Call::CaptureBegin,
        "end_capture" => Call::CaptureEnd,
        _ => return Record::Other,
    };
    Record::Call(fields[1].parse().unwrap(), call)
}
