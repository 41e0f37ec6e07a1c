//! Measures the learner's cost per call, in nanoseconds, on recorded call streams: first while it learns,
//! then at rest, after it has settled on a rule. The lock and the assembly code through which the library
//! calls the learner are not included.
//!
//! `cargo run --release -p tllmprof-learn --example cost -- crates/learn/tests/streams/*.csv.gz`

#[path = "../tests/recorded/mod.rs"]
mod recorded;

use std::time::{Duration, Instant};

use recorded::Record;
use tllmprof_learn::{Call, EndingCalls, Learner, Trails};

/// Number of times that each measurement is repeated. Only the fastest repetition is reported.
const REPETITIONS: usize = 15;
/// Minimum length, in calls, of the stream in which the learner should come to rest (it then no longer needs every
/// call). A shorter recorded stream is extended to this length.
const MIN_CALLS: usize = 1 << 17;
/// Minimum number of calls over which the cost at rest is measured.
const MIN_CALLS_AT_REST: usize = 1 << 18;

struct Cost {
    calls: usize,
    took: Duration,
}

impl Cost {
    fn add(&mut self, more: Self) {
        self.calls += more.calls;
        self.took += more.took;
    }

    fn per_call(&self) -> f64 {
        self.took.as_nanos() as f64 / self.calls.max(1) as f64
    }
}

fn rests(learner: &Learner) -> bool {
    learner.asks(false) != EndingCalls::ALL
}

/// A learner and its trails (lists of recent calls). Their memory is reused for each measurement, so that
/// page faults are not measured.
struct Process {
    trails: Trails,
    learner: Box<Learner>,
}

impl Process {
    fn new() -> Self {
        Self {
            trails: Trails::new(),
            learner: Box::new(Learner::new()),
        }
    }

    fn clear(&mut self) {
        self.trails = Trails::new();
        *self.learner = Learner::new();
    }

    fn run(&mut self, calls: &[(u32, Call)]) -> Cost {
        let begun = Instant::now();
        for &(thread, call) in calls {
            self.learner.event(&self.trails, thread, call, &|| 0);
        }
        Cost {
            calls: calls.len(),
            took: begun.elapsed(),
        }
    }
}

fn fastest(mut measure: impl FnMut() -> Cost) -> f64 {
    let costs = (0..REPETITIONS).map(|_| measure().per_call());
    costs.fold(f64::INFINITY, f64::min)
}

fn main() {
    println!(
        "{:28} {:>8} {:>9} {:>8}",
        "stream", "calls", "learning", "settled"
    );
    for path in std::env::args().skip(1) {
        let name = path.rsplit('/').next().unwrap_or(&path);
        let name = name.trim_end_matches(".csv.gz");
        let records = recorded::read(&path);
        let marks = records.iter().enumerate();
        let marks: Vec<_> = marks.filter(|(_, r)| **r == Record::Mark).collect();
        let half = marks.get(marks.len() / 2).map_or(0, |&(at, _)| at);
        let calls_of = |records: &[Record]| -> Vec<_> {
            let calls = records.iter().filter_map(|record| match *record {
                Record::Call(thread, call, _) => Some((thread, call)),
                _ => None,
            });
            calls.collect()
        };
        // Most streams end before the learner comes to rest. So the part from the middle one of the stream's marks to
        // its end is repeated.
        let (mut calls, again) = (calls_of(&records), calls_of(&records[half..]));
        while calls.len() < MIN_CALLS {
            calls.extend(&again);
        }
        let mut process = Process::new();
        let until = calls.iter().position(|call| {
            process.run(std::slice::from_ref(call));
            rests(&process.learner)
        });
        let (learning, settled) = calls.split_at(until.unwrap_or(calls.len()));
        let learns = fastest(|| {
            process.clear();
            process.run(learning)
        });
        print!("{name:28} {:8} {learns:9.1}", learning.len());
        if until.is_none() {
            println!("        -");
            continue;
        }
        let rests = fastest(|| {
            process.clear();
            process.run(learning);
            process.run(&settled[..settled.len() % again.len()]);
            let mut cost = process.run(&again);
            while cost.calls < MIN_CALLS_AT_REST {
                cost.add(process.run(&again));
            }
            cost
        });
        println!(" {rests:8.1}");
    }
}
