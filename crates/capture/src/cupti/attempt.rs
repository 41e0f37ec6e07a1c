//! The state of one attempt by the worker thread to attach or detach CUPTI. A thread of the program requests the
//! attempt, waits for it, and abandons it if it takes too long. Before the worker does anything that cannot be undone,
//! it commits to the attempt. An abandoned attempt can no longer be committed, and a committed one can no longer be
//! abandoned.
//!
//! The columns of the table are the events ([`AttemptEvent`]), and each cell is the new state:
//!
//! | state          | `Begins`      | `Abandons`     | `Commits(n)`   | `Commits(m)`, m ≠ n |
//! |----------------|---------------|----------------|----------------|---------------------|
//! | `Wanted(n)`    | `Wanted(n+1)` | `Abandoned(n)` | `Committed(n)` |                     |
//! | `Committed(n)` | `Wanted(n+1)` |                |                |                     |
//! | `Abandoned(n)` | `Wanted(n+1)` |                |                |                     |
//!
//! A transition that the table leaves empty changes nothing. Attempts are numbered, so that a worker that is still busy
//! with an old attempt cannot commit to the next one.

use tllmprof_sync::States;

/// The state of an attempt to attach or detach CUPTI. The value in each state is the attempt's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// A thread of the program has requested the attempt and waits for its end.
    Wanted(u32),
    /// The worker has committed to the attempt, which can no longer be abandoned.
    Committed(u32),
    /// The requesting thread has abandoned the attempt, so the attempt must have no effect.
    Abandoned(u32),
}

/// An event that changes the state of an attempt to attach or detach CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEvent {
    /// A thread of the program requests a new attempt.
    Begins,
    /// The thread that requested the attempt no longer waits for it.
    Abandons,
    /// The worker is about to do something for the attempt with this number that cannot be undone. From then on, the
    /// attempt cannot be abandoned.
    Commits(u32),
}

const MAX_NUMBER: u32 = u32::MAX >> 2;

impl Attempt {
    /// Returns the number of the attempt, in whatever state the attempt is.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Wanted(number) | Self::Committed(number) | Self::Abandoned(number) => number,
        }
    }
}

impl States for Attempt {
    type Event = AttemptEvent;

    fn next(self, event: AttemptEvent) -> Option<Self> {
        match (self, event) {
            (_, AttemptEvent::Begins) => {
                Some(Self::Wanted(self.number().wrapping_add(1) & MAX_NUMBER))
            }
            (Self::Wanted(number), AttemptEvent::Abandons) => Some(Self::Abandoned(number)),
            (Self::Wanted(number), AttemptEvent::Commits(of)) if number == of => {
                Some(Self::Committed(number))
            }
            _ => None,
        }
    }

    fn to_bits(self) -> u32 {
        let stage = match self {
            Self::Wanted(_) => 0,
            Self::Committed(_) => 1,
            Self::Abandoned(_) => 2,
        };
        self.number() << 2 | stage
    }

    fn from_bits(bits: u32) -> Self {
        let number = bits >> 2;
        match bits & 3 {
            0 => Self::Wanted(number),
            1 => Self::Committed(number),
            _ => Self::Abandoned(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_sync::States;

    use super::Attempt::{self, Abandoned, Committed, Wanted};
    use super::AttemptEvent::{self, Abandons, Begins, Commits};
    use super::MAX_NUMBER;

    fn after(events: &[AttemptEvent]) -> Vec<Attempt> {
        let mut attempt = Wanted(0);
        let on = |event: &AttemptEvent| {
            attempt = attempt.next(*event).unwrap_or(attempt);
            attempt
        };
        events.iter().map(on).collect()
    }

    #[test]
    fn a_word_holds_each_state() {
        for number in [0, 1, MAX_NUMBER] {
            for attempt in [Wanted(number), Committed(number), Abandoned(number)] {
                assert_eq!(Attempt::from_bits(attempt.to_bits()), attempt);
            }
        }
        assert_eq!(Wanted(0).to_bits(), 0);
    }

    #[test]
    fn the_worker_goes_through_with_what_is_wanted() {
        assert_eq!(
            after(&[Begins, Commits(1), Abandons]),
            [Wanted(1), Committed(1), Committed(1)]
        );
    }

    #[test]
    fn what_was_given_up_comes_to_nothing() {
        assert_eq!(
            after(&[Begins, Abandons, Commits(1)]),
            [Wanted(1), Abandoned(1), Abandoned(1)]
        );
    }

    #[test]
    fn a_late_worker_does_not_take_the_next_attempt_for_its_own() {
        assert_eq!(
            after(&[Begins, Abandons, Begins, Commits(1), Commits(2)])[2..],
            [Wanted(2), Wanted(2), Committed(2)]
        );
    }

    #[test]
    fn numbers_begin_again() {
        assert_eq!(Committed(MAX_NUMBER).next(Begins), Some(Wanted(0)));
    }
}
