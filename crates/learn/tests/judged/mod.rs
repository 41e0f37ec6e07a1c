//! Replays call streams and compares what the learner makes of them with the truth.

use super::recorded::Record;
use tllmprof_learn::{Learner, Trails};

/// True iterations in which the learner may still be learning.
const LEARNING: usize = 32;

/// Iterations detected, and the boundaries in each true one.
pub fn replay(records: &[Record]) -> (u64, Vec<u32>) {
    let trails = Trails::new();
    let mut learner = Box::new(Learner::new());
    let mut boundaries = Vec::new();
    for record in records {
        match *record {
            Record::Mark => boundaries.push(0),
            Record::Call(thread, call, time) => {
                let opens = learner.event(&trails, thread, call, &|| time).is_some();
                if let Some(count) = boundaries.last_mut().filter(|_| opens) {
                    *count += 1;
                }
            }
            Record::Other => {}
        }
    }
    (learner.detected(), boundaries)
}

pub fn share(boundaries: &[u32]) -> f64 {
    let judged = &boundaries[LEARNING..];
    judged.iter().filter(|&&count| count == 1).count() as f64 / judged.len() as f64
}

pub fn assert_holds(name: &str, records: &[Record]) {
    let (detected, boundaries) = replay(records);
    let (share, marks) = (share(&boundaries), boundaries.len() as u64);
    assert!(share >= 0.98, "{name}: share {share:.3}");
    let apart = detected.abs_diff(marks);
    assert!(apart * 100 <= marks, "{name}: {detected} of {marks}");
}

/// A window, the iterations it was asked for and those it was given.
pub struct Taken {
    pub first: u64,
    /// Marks between each boundary and the next, of the window's iterations.
    pub marks: Vec<u32>,
}

/// What a window gets that opens at its first iteration, or, where that has passed while the step
/// was not understood, at the first iteration after.
pub fn take(records: &[Record], asked: (u64, u64)) -> Option<Taken> {
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
            Record::Call(thread, call, time) => {
                let Some(boundary) = learner.event(&trails, thread, call, &|| time) else {
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
