//! The state that decides if a context's pool may get more events.
//!
//! | state     | `TookLong` | `Refused` |
//! |-----------|------------|-----------|
//! | `Growing` | `Wary`     | `Dead`    |
//! | `Wary`    | `Full`     | `Dead`    |
//! | `Full`    |            | `Dead`    |
//! | `Dead`    |            |           |
//!
//! A pool that is given to another context begins as `Growing`.

/// A state of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// New events are made when there are too few.
    Growing,
    /// Like `Growing`, but the driver was slow to make events once. That may have been the machine's load.
    Wary,
    /// The driver was slow again: no more events are made, and the existing ones are used.
    Full,
    /// The driver has refused a call: nothing is timed in this context any more.
    Dead,
}

/// An event that changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The driver was slow to make events.
    TookLong,
    /// The driver has refused a call.
    Refused,
}

impl Supply {
    /// The state after `event`.
    pub const fn next(self, event: Event) -> Self {
        match (self, event) {
            (Self::Dead, _) | (_, Event::Refused) => Self::Dead,
            (Self::Growing, Event::TookLong) => Self::Wary,
            (Self::Wary | Self::Full, Event::TookLong) => Self::Full,
        }
    }

    /// Returns true if more events may be made.
    pub const fn may_grow(self) -> bool {
        matches!(self, Self::Growing | Self::Wary)
    }

    /// Returns true if nothing is timed in this context any more.
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Dead)
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{self, Refused, TookLong};
    use super::Supply::{self, Dead, Full, Growing, Wary};

    fn after(events: &[Event]) -> Supply {
        let on = |supply: Supply, event: &Event| supply.next(*event);
        events.iter().fold(Growing, on)
    }

    #[test]
    fn no_more_are_made_from_the_second_slow_time_on() {
        assert_eq!(after(&[TookLong]), Wary);
        assert_eq!(after(&[TookLong, TookLong]), Full);
        assert_eq!(after(&[TookLong; 3]), Full);
        assert!(Wary.may_grow() && !Full.may_grow() && !Full.is_dead());
    }

    #[test]
    fn a_refusal_is_for_good() {
        for before in [&[][..], &[TookLong], &[TookLong, TookLong]] {
            let events: Vec<_> = before.iter().copied().chain([Refused, TookLong]).collect();
            assert_eq!(after(&events), Dead);
        }
        assert!(!Dead.may_grow() && Dead.is_dead());
    }
}
