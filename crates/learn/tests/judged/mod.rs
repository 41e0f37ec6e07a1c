//! Replays a stream of CUDA calls to the learner, and compares the iterations that it finds with the true iterations,
//! which marks in the stream show.

use super::recorded::Record;
use tllmprof_learn::{Learner, Trails};

/// Number of true iterations during which the learner may still be learning. The boundaries that it reports in these
/// iterations are not judged.
const LEARNING: usize = 32;

/// Returns the number of iterations that the learner detected, and for each true iteration the number of
/// boundaries that it reported.
pub(crate) fn replay(records: &[Record]) -> (u64, Vec<u32>) {
    let (learner, boundaries) = replay_level(records, false);
    (learner.detected(), boundaries)
}

/// Replays the records to a learner. Returns the learner, and for each true iteration the number of boundaries that it
/// reported. If `inner` is true and the learner finds two levels of repetition, it counts the parts of iterations
/// instead.
pub(crate) fn replay_level(records: &[Record], inner: bool) -> (Box<Learner>, Vec<u32>) {
    let trails = Trails::new();
    let mut learner = Box::new(Learner::new());
    learner.begin(&trails, inner);
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
    (learner, boundaries)
}

pub(crate) fn share(boundaries: &[u32]) -> f64 {
    let judged = &boundaries[LEARNING..];
    judged.iter().filter(|&&count| count == 1).count() as f64 / judged.len() as f64
}

pub(crate) fn assert_holds(name: &str, records: &[Record]) {
    let (detected, boundaries) = replay(records);
    let (share, marks) = (share(&boundaries), boundaries.len() as u64);
    assert!(share >= 0.98, "{name}: share {share:.3}");
    let apart = detected.abs_diff(marks);
    assert!(apart * 100 <= marks, "{name}: {detected} of {marks}");
}

/// A window (a recorded interval) and the iterations that it captured.
pub(crate) struct Taken {
    pub first: u64,
    /// For each iteration in the window, the number of true iterations that begin in it, according to the marks in the
    /// stream. Each number should be 1.
    pub marks: Vec<u32>,
}

/// Replays the records. Returns the window that opens if the iterations `asked` (first and last) are requested. If the
/// first requested iteration has passed before the learner knows the step, the window opens at the next boundary.
pub(crate) fn take(records: &[Record], asked: (u64, u64)) -> Option<Taken> {
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
