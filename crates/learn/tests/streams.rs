//! Recorded call streams of real processes, whose true iterations are known. The marks that tell
//! them are never shown to the learner. The streams were recorded on an NVIDIA H200.

use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use tllmprof_learn::{Call, Learner, Trails, Wait};

/// True iterations in which the learner may still be learning.
const LEARNING: usize = 32;

enum Record {
    Mark,
    Call(u32, Call),
    Other,
}

fn stream(name: &str) -> Vec<Record> {
    let path = format!("{}/tests/streams/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    GzDecoder::new(File::open(&path).expect(&path))
        .read_to_string(&mut text)
        .expect(&path);
    text.lines().skip(1).map(record).collect()
}

fn record(line: &str) -> Record {
    let fields: Vec<_> = line.split(',').collect();
    let kernel = || u64::from_str_radix(&fields[3][1..], 16).unwrap() + (1 << 32);
    let call = match fields[2] {
        "mark" => return Record::Mark,
        "launch" | "launch_ex" => Call::Launch(kernel()),
        "graph_launch" => Call::GraphLaunch,
        "memcpy_dtoh_async" => Call::CopyToHost,
        "memcpy_htod_async" => Call::CopyToDevice,
        "stream_sync_end" => Call::Returned(Wait::Stream),
        "event_sync_end" => Call::Returned(Wait::Event),
        "ctx_sync_end" => Call::Returned(Wait::Context),
        "begin_capture" => Call::CaptureBegin,
        "end_capture" => Call::CaptureEnd,
        _ => return Record::Other,
    };
    Record::Call(fields[1].parse().unwrap(), call)
}

/// Iterations detected, and the boundaries in each true one.
fn replay(records: &[Record]) -> (u64, Vec<u32>) {
    let trails = Trails::new();
    let mut learner = Box::new(Learner::new());
    let mut boundaries = Vec::new();
    for record in records {
        match *record {
            Record::Mark => boundaries.push(0),
            Record::Call(thread, call) => {
                let opens = learner.event(&trails, thread, call).is_some();
                if let Some(count) = boundaries.last_mut().filter(|_| opens) {
                    *count += 1;
                }
            }
            Record::Other => {}
        }
    }
    (learner.detected(), boundaries)
}

fn share(boundaries: &[u32]) -> f64 {
    let judged = &boundaries[LEARNING..];
    judged.iter().filter(|&&count| count == 1).count() as f64 / judged.len() as f64
}

fn holds(name: &str) {
    let records = stream(name);
    let (detected, boundaries) = replay(&records);
    let (share, marks) = (share(&boundaries), boundaries.len() as u64);
    assert!(share >= 0.98, "{name}: share {share:.3}");
    let apart = detected.abs_diff(marks);
    assert!(apart * 100 <= marks, "{name}: {detected} of {marks}");
}

macro_rules! streams {
    ($($name:ident)*) => {
        const STREAMS: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            holds(stringify!($name));
        })*
    };
}

streams! {
    engine_full engine_piecewise hf_assisted hf_beam hf_cb hf_graphdecode hf_greedy hf_two jax
    llamacpp_nograph
}

/// The second stream stands for what a process does after the first.
fn follows(first: &str, second: &str) {
    let mut records = stream(first);
    let (_, before) = replay(&records);
    records.extend(stream(second));
    let (_, boundaries) = replay(&records);
    let share = share(&boundaries[before.len()..]);
    assert!(share >= 0.98, "{second} after {first}: share {share:.3}");
}

#[test]
fn another_engine_follows() {
    follows("hf_greedy", "engine_full");
    follows("engine_full", "hf_beam");
    follows("engine_piecewise", "hf_assisted");
    follows("llamacpp_nograph", "jax");
}

#[test]
fn the_first_iterations_were_missed() {
    for name in [
        "engine_full",
        "hf_greedy",
        "llamacpp_nograph",
        "hf_two",
        "jax",
    ] {
        let mut records = stream(name);
        let mut marks = 0;
        records.retain(|record| {
            marks += u32::from(matches!(record, Record::Mark));
            marks > 5
        });
        let (_, boundaries) = replay(&records);
        let share = share(&boundaries);
        assert!(share >= 0.98, "{name}: share {share:.3}");
    }
}

#[test]
fn copies_to_the_device_are_not_seen() {
    for name in ["engine_full", "hf_cb", "hf_greedy", "llamacpp_nograph"] {
        let mut records = stream(name);
        records.retain(|record| !matches!(record, Record::Call(_, Call::CopyToDevice)));
        let (_, boundaries) = replay(&records);
        let share = share(&boundaries);
        assert!(share >= 0.98, "{name}: share {share:.3}");
    }
}

/// The iterations that a window was given.
struct Taken {
    first: u64,
    /// Marks between each boundary and the next, of the window's iterations.
    marks: Vec<u32>,
}

/// What a window gets that opens at its first iteration, or, where that has passed while the step
/// was not understood, at the first iteration after.
fn take(records: &[Record], asked: (u64, u64)) -> Option<Taken> {
    let trails = Trails::new();
    let mut learner = Box::new(Learner::new());
    let mut taken: Option<Taken> = None;
    let mut number = 0;
    for record in records {
        match *record {
            Record::Mark => {
                if let Some(marks) = taken.as_mut().and_then(|taken| taken.marks.last_mut()) {
                    *marks += 1;
                }
            }
            Record::Call(thread, call) => {
                let Some(boundary) = learner.event(&trails, thread, call) else {
                    continue;
                };
                number = match &taken {
                    Some(_) => boundary.iteration.max(number + 1),
                    None => boundary.iteration,
                };
                match &mut taken {
                    Some(taken) if number > taken.first + (asked.1 - asked.0) => break,
                    Some(taken) => taken.marks.push(0),
                    None if learner.understands() && number >= asked.0 => {
                        taken = Some(Taken {
                            first: number,
                            marks: vec![0],
                        });
                    }
                    None => {}
                }
            }
            Record::Other => {}
        }
    }
    taken
}

#[test]
fn windows_open_on_true_iterations_alone() {
    let mut wrong = Vec::new();
    for &name in STREAMS {
        let records = stream(name);
        for asked in [(0, 2), (5, 9), (20, 29), (50, 99)] {
            let Some(taken) = take(&records, asked) else {
                assert!(
                    name == "hf_cb" && asked.0 == 50,
                    "{name} {asked:?}: never opened"
                );
                continue;
            };
            // How late it may open.
            assert!(taken.first <= asked.0.max(64), "{name}: at {}", taken.first);
            // The stream's last iteration is not whole.
            let marks = &taken.marks[..taken.marks.len() - 1];
            let amiss = marks.iter().filter(|&&marks| marks != 1).count();
            if marks.first().is_some_and(|&marks| marks != 1) || amiss * 20 > marks.len() {
                wrong.push((name, asked, taken.first, taken.marks));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
