//! Stretches of time that are recorded in place of iterations as long as `auto` has recognized no step. So
//! even a run without a recognized step has a record.
//!
//! Each stretch replaces the previous one in the record. When the process ends, the latest stretch that is long enough
//! is reported. As soon as an iteration of a recognized step begins, the stretches are dropped.

use core::time::Duration;
use std::time::Instant;

/// The shortest time from the process's first CUDA call to the beginning of the first stretch.
const FIRST_STRETCH_AFTER: Duration = Duration::from_millis(200);
/// The shortest stretch of time that is worth reporting at the end of the process.
const SHORTEST: Duration = Duration::from_millis(250);
/// The duration after which the next CUDA call ends a stretch and begins another.
const LONGEST: Duration = Duration::from_secs(4);

/// The stretches of time that a process records in place of iterations: the current one and the one before.
#[derive(Default)]
pub(crate) struct Stretches {
    /// The time of the process's first CUDA call; `None` before that call.
    since: Option<Instant>,
    /// The time when the current stretch began, and its number.
    current: Option<(Instant, u64)>,
    /// The duration of the stretch before the current one; `None` if there was none.
    last: Option<Duration>,
    /// True if an iteration of a recognized step has begun, so that no more stretches are needed.
    has_ended: bool,
    /// True if steps that were not relied on have replaced the stretch when the process ended.
    are_probable: bool,
}

/// The stretch that is reported when the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Reported {
    pub length: Duration,
    /// True if this is the current stretch, false if it is the previous one.
    pub is_current: bool,
}

impl Stretches {
    /// Stores the current time. Called when the process begins to use CUDA.
    pub(crate) fn cuda_is_used(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Returns true if a stretch is being recorded in place of iterations.
    pub(crate) const fn is_on(&self) -> bool {
        self.current.is_some()
    }

    /// Returns true if an iteration of a recognized step has begun. Then no more stretches begin.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Begins the first stretch or the next one, if a new stretch is due at `now`. Returns the number of the new
    /// stretch; `None` if none is due.
    pub(crate) fn begins(&mut self, now: Instant) -> Option<u64> {
        let number = match self.current {
            None => {
                let since = now.saturating_duration_since(self.since?);
                (since >= FIRST_STRETCH_AFTER).then_some(0)
            }
            Some((began, number)) => {
                let length = now.saturating_duration_since(began);
                (length >= LONGEST).then(|| {
                    self.last = Some(length);
                    number + 1
                })
            }
        }?;
        self.current = Some((now, number));
        Some(number)
    }

    /// Called when an iteration of a recognized step begins. Ends the current stretch, if there is one.
    pub(crate) fn ends(&mut self) {
        self.has_ended = true;
        self.current = None;
    }

    /// Called when the process ends, if steps that are probably right replace the stretch.
    pub(crate) fn is_replaced_by_probable_steps(&mut self) {
        self.ends();
        self.are_probable = true;
    }

    /// Returns true if the recorded steps were not relied on, but are probably right.
    pub(crate) const fn has_probable_steps(&self) -> bool {
        self.are_probable
    }

    /// Returns the stretch to report when the process ends: the current one or, if the current one is shorter than half
    /// of [`LONGEST`], the previous one. Returns `None` if there is no stretch that is long enough.
    pub(crate) fn finish(&mut self, now: Instant) -> Option<Reported> {
        let (began, _) = self.current?;
        let length = now.saturating_duration_since(began);
        match self.last {
            Some(last) if length < LONGEST / 2 => Some(Reported {
                length: last,
                is_current: false,
            }),
            None if length < SHORTEST => None,
            _ => Some(Reported {
                length,
                is_current: true,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1);

    /// Simulates a process that makes calls at the times `at`, in milliseconds after it began to use CUDA.
    /// Returns for each call the number of the stretch that it began.
    fn calls(at: &[u64]) -> (Stretches, Instant, Vec<Option<u64>>) {
        let began = Instant::now() + START;
        let mut span = Stretches {
            since: Some(began),
            ..Stretches::default()
        };
        let begin = |ms: &u64| span.begins(began + Duration::from_millis(*ms));
        let begun = at.iter().map(begin).collect();
        (span, began, begun)
    }

    fn reported(span: &mut Stretches, began: Instant, ms: u64) -> Option<(u128, bool)> {
        let reported = span.finish(began + Duration::from_millis(ms))?;
        Some((reported.length.as_millis(), reported.is_current))
    }

    #[test]
    fn a_stretch_begins_a_while_after_the_first_call() {
        let (mut span, began, begun) = calls(&[0, 150, 210, 900]);
        assert_eq!(begun, [None, None, Some(0), None]);
        assert!(span.is_on());
        assert_eq!(reported(&mut span, began, 400), None, "it is too short");
        assert_eq!(reported(&mut span, began, 1210), Some((1000, true)));
    }

    #[test]
    fn the_latest_stretch_that_is_long_enough_is_reported() {
        let (mut span, began, begun) = calls(&[200, 4100, 4300]);
        assert_eq!(begun, [Some(0), None, Some(1)]);
        assert_eq!(reported(&mut span, began, 4900), Some((4100, false)));
        assert_eq!(reported(&mut span, began, 6400), Some((2100, true)));
    }

    #[test]
    fn an_iteration_that_is_relied_on_ends_them() {
        let (mut span, began, _) = calls(&[300]);
        span.ends();
        assert!(span.has_ended() && !span.is_on());
        assert_eq!(reported(&mut span, began, 9000), None);
    }
}
