//! Detects processes that are in lockstep, which means that they make the same steps at the same time. Chooses the step
//! with which a window opens in all these processes.

use std::time::Duration;

use tllmprof_control::Status;

/// The largest difference between the step counts of two processes that are in lockstep (that make the same steps at
/// the same time), if both counts are read at the same time.
const APART: u64 = 2;
/// Minimum duration that [`Plan::new`] assumes for a sample (a reading of all step counts) when it chooses the first
/// step of the windows. Even a process that has answered a sample quickly may need longer to accept a window: on a busy
/// machine, a thread waits tens of milliseconds for a processor. A process that has already passed the first step
/// refuses the window. In that case, the windows that other processes have opened by then are closed again, but stay in
/// their records with only a few iterations.
const MIN_TRIP: Duration = Duration::from_millis(50);

/// The step counts of all processes, which were read at nearly the same time.
pub(crate) struct Sample {
    pub counts: Vec<Status>,
    /// Time from the first request for the step counts to the last answer.
    pub took: Duration,
}

/// The processes that are in lockstep (that make the same steps at the same time), and the step with which their
/// windows open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The first step of the windows that open in the processes in lockstep (which make the same steps at the same
    /// time).
    pub first: u64,
    /// True for each process that is in lockstep (that makes the same steps at the same time as the others). The window
    /// of any other process opens at that process's next step.
    pub members: Vec<bool>,
}

impl Plan {
    /// Makes a plan from three successive samples. The rate of steps is computed from the first two samples. The third
    /// sample is taken right after the second. The first step is chosen so that all processes have enough time to
    /// accept it. This time is `trips` times the duration of the third sample, or `trips` times [`MIN_TRIP`] if that
    /// sample took less.
    pub(crate) fn new(samples: &[Sample; 3], trips: u32) -> Self {
        let [before, now, latest] = samples;
        let advanced = |(before, now): (&Status, &Status)| {
            let time = now.at_ns.saturating_sub(before.at_ns).max(1);
            let steps = now.iterations.saturating_sub(before.iterations);
            steps as f64 * 1e9 / time as f64
        };
        let fastest = before
            .counts
            .iter()
            .zip(&now.counts)
            .map(advanced)
            .fold(0.0, f64::max);
        let count = |sample: &Sample, process: usize| sample.counts[process].iterations;
        // Processes answer after different delays, so the counts of one sample are not from the same time. But every
        // count of the next sample was read after all counts of this sample. So if two processes are in lockstep (make
        // the same steps at the same time), the count of each in the next sample is at least the count of the other in
        // this sample.
        let has_reached = |process: usize, other: usize| {
            samples
                .windows(2)
                .all(|two| count(&two[0], other) <= count(&two[1], process) + APART)
        };
        let near = |one: usize, other: usize| has_reached(one, other) && has_reached(other, one);
        // Finds the process with which most other processes are in lockstep (make the same steps at the same time). If
        // there are several such processes, chooses the one that has made the most steps.
        let all = 0..latest.counts.len();
        let members_of = |one: usize| all.clone().filter(|other| near(one, *other)).count();
        let Some(ahead) = all
            .clone()
            .max_by_key(|one| (members_of(*one), count(latest, *one)))
        else {
            return Self {
                first: 0,
                members: Vec::new(),
            };
        };
        let trip = latest.took.max(MIN_TRIP);
        let within = (fastest * (trip * trips).as_secs_f64()).ceil() as u64;
        Self {
            first: count(latest, ahead).saturating_add(within + 1),
            members: all.map(|other| near(ahead, other)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, took_ms: u64, counts: &[u64]) -> Sample {
        let status = |iterations: &u64| Status {
            iterations: *iterations,
            at_ns: at_ms * 1_000_000,
            ..Status::default()
        };
        Sample {
            counts: counts.iter().map(status).collect(),
            took: Duration::from_millis(took_ms),
        }
    }

    /// Returns three samples with the given step counts, each of which took 4 ms to read.
    fn samples(before: &[u64], now: &[u64], latest: &[u64]) -> [Sample; 3] {
        [
            sample(0, 4, before),
            sample(100, 4, now),
            sample(104, 4, latest),
        ]
    }

    #[test]
    fn those_in_lockstep_open_with_a_step_that_none_has_reached() {
        let samples = samples(
            &[1000, 1001, 1003],
            &[1100, 1101, 1103],
            &[1104, 1105, 1107],
        );
        let plan = Plan::new(&samples, 2);
        assert_eq!(
            plan,
            Plan {
                first: 1107 + 101,
                members: vec![true; 3]
            }
        );
        assert!(Plan::new(&samples, 4).first > plan.first);
    }

    #[test]
    fn an_answer_that_takes_long_on_a_busy_machine_does_not_tell_apart() {
        // In the first sample, both processes have the same count. In the second sample, the second process answered
        // late, when it had made 40 more steps than the first process.
        let samples = samples(&[1000, 1000], &[1000, 1040], &[1041, 1080]);
        assert_eq!(Plan::new(&samples, 2).members, [true, true]);
    }

    #[test]
    fn one_that_idles_or_counts_otherwise_opens_at_its_own_step() {
        let (before, now, latest) = (
            [1000, 17, 1001, 5000],
            [1100, 17, 1101, 5100],
            [1104, 17, 1105, 5104],
        );
        assert_eq!(
            Plan::new(&samples(&before, &now, &latest), 2).members,
            [true, false, true, false]
        );
        // If there is only one process, it counts as being in lockstep.
        assert_eq!(
            Plan::new(&samples(&[7], &[7], &[7]), 2),
            Plan {
                first: 8,
                members: vec![true]
            }
        );
    }
}
