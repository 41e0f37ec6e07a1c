//! Decides whether more CUDA events may be created in a context's pool.
//!
//! | state     | `TookLong` | `Refused` |
//! |-----------|------------|-----------|
//! | `Growing` | `Wary`     | `Dead`    |
//! | `Wary`    | `Full`     | `Dead`    |
//! | `Full`    |            | `Dead`    |
//! | `Dead`    |            |           |
//!
//! Each row shows the state after each event. In an empty field the state does not change. A pool that is assigned to
//! another context starts again as `Growing`.

/// The state of a context's pool of CUDA events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// More CUDA events are created when there are too few.
    Growing,
    /// The driver was slow to create CUDA events once, perhaps because the machine was under load. More events are
    /// still created.
    Wary,
    /// The driver was slow a second time, so no more CUDA events are created. The existing events are still used.
    Full,
    /// The driver has refused a call, so timing has stopped in this context.
    Dead,
}

/// An occurrence that changes the state of a context's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SupplyEvent {
    /// The driver was slow to create CUDA events.
    TookLong,
    /// The driver has refused a call that concerns CUDA events.
    Refused,
}

impl Supply {
    /// Returns the pool's state after `event`.
    pub(crate) const fn next(self, event: SupplyEvent) -> Self {
        match (self, event) {
            (Self::Dead, _) | (_, SupplyEvent::Refused) => Self::Dead,
            (Self::Growing, SupplyEvent::TookLong) => Self::Wary,
            (Self::Wary | Self::Full, SupplyEvent::TookLong) => Self::Full,
        }
    }

    /// Returns true if more CUDA events may be created in the context.
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
