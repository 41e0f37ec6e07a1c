//! Checks the learner on synthetic loops that no recorded stream resembles. The times of the host and the GPU
//! are simulated.

#[expect(dead_code, reason = "shared with the tests of recorded streams")]
mod judged;
mod made;
#[expect(dead_code, reason = "these streams are not read from files")]
mod recorded;

use judged::{replay_level, share, take};

/// Minimum share of true iterations in which the learner must report exactly one boundary.
const MIN_SHARE: f64 = 0.95;

/// Programs that wait less than once per true iteration, so that several true iterations lie between two waits. In
/// these programs the learner has to count its inner level (the parts of the interval between two waits).
const INNER: [&str; 6] = [
    "cfg",
    "jax_every_4",
    "jax_every_4_late",
    "log_each_10",
    "stop_check_4",
    "stop_check_16",
];

/// The number of the iteration by which the learner must know the step. It is larger than the number of layers of any
/// model plus the number of iterations between two examinations of the call history.
const UNDERSTOOD_BY: u64 = 160;

#[test]
fn a_step_is_understood_although_the_history_has_few() {
    let taken = take(&made::synced_layers(), (0, 50)).unwrap();
    assert!(taken.first <= UNDERSTOOD_BY, "{}", taken.first);
    assert!(taken.marks[..50].iter().all(|marks| *marks == 1));
}

#[test]
fn iterations_are_found() {
    let mut wrong = Vec::new();
    for (name, records) in made::all() {
        let is_inner = INNER.contains(&name.as_str());
        let (learner, boundaries) = replay_level(&records, is_inner);
        let (share, marks) = (share(&boundaries), boundaries.len() as u64);
        let is_offered = !is_inner || learner.inner().is_some();
        let apart = learner.detected().abs_diff(marks);
        if share < MIN_SHARE || !is_offered || apart * 50 > marks {
            let rule = learner.rule().map(|rule| rule.to_string());
            wrong.push((name, share, learner.detected(), marks, rule));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
