//! Converts the numbers of calls into the numbers of iterations.

use core::ops::Range;

/// Determines which iteration begins at which call. Calls are numbered from 0.
///
/// A call that opens an iteration does so before it continues to the intercepted function. A call that closes an
/// iteration does so when it returns, and the next iteration begins then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// The number of counted calls in an iteration.
    pub every: u64,
    /// True if the counted calls close iterations instead of opening them.
    pub closes: bool,
    /// The number of iterations at the start that are not counted (warm-up).
    pub warmup: u64,
    /// The number of the first call that counts, since counting started or restarted.
    pub start: u64,
}

impl Numbering {
    fn base(&self) -> u64 {
        self.start
            .saturating_add(self.warmup.saturating_mul(self.every))
    }

    /// Returns the iteration that begins at call number `call`, if there is one.
    pub fn begins_at(&self, call: u64) -> Option<u64> {
        let calls = (call + u64::from(self.closes)).checked_sub(self.base())?;
        calls
            .is_multiple_of(self.every)
            .then_some(calls / self.every)
    }

    /// Returns the iteration that ends when call number `call` returns, if there is one. Only for a rule
    /// whose calls open iterations.
    pub fn ends_after(&self, call: u64) -> Option<u64> {
        let calls = call.checked_sub(self.base())? + 1;
        calls
            .is_multiple_of(self.every)
            .then(|| calls / self.every - 1)
    }

    /// Returns the last iteration that begins at one of the calls with the numbers `calls`.
    pub fn last_begun(&self, calls: Range<u64>) -> Option<u64> {
        calls.rev().find_map(|call| self.begins_at(call))
    }

    /// Returns the number of the call at which `iteration` begins. Returns `None` if no call begins it, such
    /// as iteration 0 if the calls close iterations and there is no warm-up.
    pub fn call_of(&self, iteration: u64) -> Option<u64> {
        self.base()
            .saturating_add(iteration.saturating_mul(self.every))
            .checked_sub(u64::from(self.closes))
            .filter(|&call| call >= self.start)
    }

    /// Returns true if iteration 0 is open from the start, so that no call begins it.
    pub const fn begins_open(&self) -> bool {
        self.closes && self.warmup == 0
    }

    /// Returns the first iteration that begins after `calls` calls have been made.
    pub fn next(&self, calls: u64) -> u64 {
        let counted = (calls.saturating_add(u64::from(self.closes))).saturating_sub(self.base());
        counted.div_ceil(self.every)
    }

    /// Returns the number of iterations that `calls` calls have begun, or have ended if the calls close
    /// iterations.
    pub fn iterations(&self, calls: u64) -> u64 {
        let counted = calls.saturating_sub(self.base());
        if self.closes {
            counted / self.every
        } else {
            counted.div_ceil(self.every)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_call_begins_its_iteration() {
        let numbering = Numbering {
            every: 4,
            closes: false,
            warmup: 0,
            start: 0,
        };
        assert_eq!(numbering.begins_at(0), Some(0));
        assert_eq!(numbering.begins_at(3), None);
        assert_eq!(numbering.begins_at(20), Some(5));
        assert_eq!(numbering.ends_after(22), None);
        assert_eq!(numbering.ends_after(23), Some(5));
        assert_eq!(numbering.call_of(5), Some(20));
        assert_eq!(numbering.iterations(0), 0);
        assert_eq!(numbering.iterations(1), 1);
        assert_eq!(numbering.iterations(8), 2);
        assert!(!numbering.begins_open());
    }

    #[test]
    fn a_closing_call_begins_the_next_iteration() {
        let numbering = Numbering {
            every: 1,
            closes: true,
            warmup: 0,
            start: 0,
        };
        assert_eq!(numbering.begins_at(0), Some(1));
        assert_eq!(numbering.call_of(0), None);
        assert_eq!(numbering.call_of(5), Some(4));
        assert_eq!(numbering.iterations(5), 5);
        assert!(numbering.begins_open());
    }

    #[test]
    fn warm_up_and_a_later_start_are_not_counted() {
        let opens = Numbering {
            every: 2,
            closes: false,
            warmup: 3,
            start: 10,
        };
        assert_eq!(opens.begins_at(15), None);
        assert_eq!(opens.begins_at(16), Some(0));
        assert_eq!(opens.call_of(1), Some(18));
        assert_eq!(opens.ends_after(15), None);
        assert_eq!(opens.ends_after(17), Some(0));
        let closes = Numbering {
            closes: true,
            ..opens
        };
        assert_eq!(closes.begins_at(15), Some(0));
        assert_eq!(closes.begins_at(17), Some(1));
        assert_eq!(closes.iterations(17), 0);
        assert_eq!(closes.iterations(18), 1);
    }

    #[test]
    fn the_next_iteration_is_the_first_that_begins_later() {
        for closes in [false, true] {
            for (every, warmup, start) in [(1, 0, 0), (4, 0, 0), (3, 2, 7)] {
                let numbering = Numbering {
                    every,
                    closes,
                    warmup,
                    start,
                };
                for calls in 0..60 {
                    let later = (calls..).find_map(|call| numbering.begins_at(call));
                    assert_eq!(Some(numbering.next(calls)), later, "{numbering:?} {calls}");
                }
            }
        }
    }

    #[test]
    fn ends_of_the_number_range_do_not_overflow() {
        let numbering = Numbering {
            every: u64::MAX,
            closes: true,
            warmup: u64::MAX,
            start: 5,
        };
        assert_eq!(numbering.call_of(u64::MAX), Some(u64::MAX - 1));
        assert_eq!(numbering.begins_at(7), None);
        assert_eq!(numbering.iterations(u64::MAX), 0);
    }
}
