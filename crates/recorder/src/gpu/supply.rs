//! The state that decides if more events may be created in a context's pool.
//!
//! | state     | `TookLong` | `Refused` |
//! |-----------|------------|-----------|
//! | `Growing` | `Wary`     | `Dead`    |
//! | `Wary`    | `Full`     | `Dead`    |
//! | `Full`    |            | `Dead`    |
//! | `Dead`    |            |           |
//!
//! A pool that is assigned to another context starts again as `Growing`. In an empty field the state does not
//! change.

/// The state of a context's pool of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// More events are created when there are too few.
    Growing,
    /// Like `Growing`, but the driver was slow to create events once, perhaps because the machine was under
    /// load.
    Wary,
    /// The driver was slow again, so no more events are created. The existing ones are used.
    Full,
    /// The driver has refused a call, so timing has stopped in this context.
    Dead,
}

/// An event that changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SupplyEvent {
    /// The driver was slow to create events.
    TookLong,
    /// The driver has refused a call.
    Refused,
}

impl Supply {
    /// Returns the state after `event`.
    pub(crate) const fn next(self, event: SupplyEvent) -> Self {
        match (self, event) {
            (Self::Dead, _) | (_, SupplyEvent::Refused) => Self::Dead,
            (Self::Growing, SupplyEvent::TookLong) => Self::Wary,
            (Self::Wary | Self::Full, SupplyEvent::TookLong) => Self::Full,
        }
    }

    /// Returns true if more events may be created.
    pub(crate) const fn may_grow(self) -> bool {
        matches!(self, Self::Growing | Self::Wary)
    }

    /// Returns true if timing has stopped in this context.
    pub(crate) const fn is_dead(self) -> bool {
        matches!(self, Self::Dead)
    }
}

#[cfg(test)]
mod tests {
    use super::Supply::{self, Dead, Full, Growing, Wary};
    use super::SupplyEvent::{self, Refused, TookLong};

    fn after(events: &[SupplyEvent]) -> Supply {
        let on = |supply: Supply, event: &SupplyEvent| supply.next(*event);
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
