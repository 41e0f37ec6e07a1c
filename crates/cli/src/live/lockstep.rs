//! Which processes make the same steps at the same time, and the step with which a window opens in all of them.

use std::time::Duration;

use tllmprof_control::Status;

/// Steps by which counts that were read at one time may differ for their processes to be in lockstep, besides those
/// that are made while they are read.
const APART: u64 = 2;

/// Counts of all processes, read as nearly at one time as can be.
pub struct Sample {
    pub counts: Vec<Status>,
    /// From the first question to the last answer.
    pub took: Duration,
}

/// What is to open where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The step of those in lockstep.
    pub first: u64,
    /// Which are; the others open at their own step.
    pub members: Vec<bool>,
}

impl Plan {
    /// By two samples, of which the second is the later. `trips`: how many times the time of a sample may pass until
    /// all have confirmed.
    pub fn new(before: &Sample, now: &Sample, trips: u32) -> Self {
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
        let within = |time: Duration| (fastest * time.as_secs_f64()).ceil() as u64;
        let apart = APART + within(now.took);
        let counts: Vec<_> = now.counts.iter().map(|status| status.iterations).collect();
        // The largest group whose counts lie together; the one that is ahead, of two.
        let near = |count: u64, other: u64| other <= count && count - other <= apart;
        let members_of = |count: u64| counts.iter().filter(|other| near(count, **other)).count();
        let ahead = counts
            .iter()
            .copied()
            .max_by_key(|count| (members_of(*count), *count));
        let ahead = ahead.unwrap_or(0);
        let margin = within(now.took * trips) + 1;
        Self {
            first: ahead.saturating_add(margin),
            members: counts.iter().map(|count| near(ahead, *count)).collect(),
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

    #[test]
    fn those_in_lockstep_open_with_a_step_that_none_has_reached() {
        // 1000 steps a second, read within 4 ms.
        let before = sample(0, 4, &[1000, 1001, 1003]);
        let now = sample(100, 4, &[1100, 1101, 1103]);
        let plan = Plan::new(&before, &now, 2);
        assert_eq!(
            plan,
            Plan {
                first: 1103 + 9,
                members: vec![true; 3]
            }
        );
        assert!(Plan::new(&before, &now, 4).first > plan.first);
    }

    #[test]
    fn one_that_idles_or_counts_otherwise_opens_at_its_own_step() {
        let before = sample(0, 4, &[1000, 17, 1001, 5000]);
        let now = sample(100, 4, &[1100, 17, 1101, 5100]);
        assert_eq!(
            Plan::new(&before, &now, 2).members,
            [true, false, true, false]
        );
        // Who is alone is in lockstep with itself.
        let (before, now) = (sample(0, 1, &[7]), sample(100, 1, &[7]));
        assert_eq!(
            Plan::new(&before, &now, 2),
            Plan {
                first: 8,
                members: vec![true]
            }
        );
    }
}
