//! The state of CUPTI in the driver. Only the worker thread changes it; any thread may read it. The columns of the
//! table are the events ([`PresenceEvent`]), and each cell is the new state:
//!
//! | state | `Subscribed` | `Enabled` | `SwitchedOff` | `Finalised`, `Released` |
//! |-------|--------------|-----------|---------------|-------------------------|
//! | `Out` | `In`         |           |               |                         |
//! | `In`  |              | `On`      |               | `Out`                   |
//! | `On`  |              |           | `In`          |                         |
//!
//! A transition that the table leaves empty changes nothing. The child process after a fork begins with `Out`,
//! because it cannot use its parent's CUPTI.

use tllmprof_sync::States;

/// The state of CUPTI in the driver: not attached, disabled or enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Presence {
    /// This library does not use CUPTI: it has not attached CUPTI, has detached it, or has released it to another
    /// profiler.
    Out,
    /// CUPTI is attached but disabled, so it records nothing. Launches are still slower than without CUPTI.
    In,
    /// CUPTI is attached and records work.
    On,
}

/// An event that changes the state of CUPTI in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresenceEvent {
    Subscribed,
    Enabled,
    SwitchedOff,
    Finalised,
    /// This library has released CUPTI, so that another profiler can use it.
    Released,
}

impl States for Presence {
    type Event = PresenceEvent;

    fn next(self, event: PresenceEvent) -> Option<Self> {
        match (self, event) {
            (Self::Out, PresenceEvent::Subscribed) | (Self::On, PresenceEvent::SwitchedOff) => {
                Some(Self::In)
            }
            (Self::In, PresenceEvent::Enabled) => Some(Self::On),
            (Self::In, PresenceEvent::Finalised | PresenceEvent::Released) => Some(Self::Out),
            _ => None,
        }
    }

    fn to_bits(self) -> u32 {
        self as u32
    }

    fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Out,
            1 => Self::In,
            _ => Self::On,
        }
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_sync::States;

    use super::Presence::{self, In, On, Out};
    use super::PresenceEvent::{self, Enabled, Finalised, Released, Subscribed, SwitchedOff};

    fn after(events: &[PresenceEvent]) -> Vec<Presence> {
        let mut presence = Out;
        let on = |event: &PresenceEvent| {
            presence = presence.next(*event).unwrap_or(presence);
            presence
        };
        events.iter().map(on).collect()
    }

    #[test]
    fn a_word_holds_each_state() {
        for presence in [Out, In, On] {
            assert_eq!(Presence::from_bits(presence.to_bits()), presence);
        }
        assert_eq!(Out.to_bits(), 0);
    }

    #[test]
    fn it_comes_and_goes_with_each_window() {
        let window = [Subscribed, Enabled, SwitchedOff, Finalised];
        assert_eq!(after(&window), [In, On, In, Out]);
        assert_eq!(after(&[window, window].concat())[4..], [In, On, In, Out]);
    }

    #[test]
    fn it_is_switched_on_again_where_it_could_not_go() {
        assert_eq!(
            after(&[Subscribed, Enabled, SwitchedOff, Subscribed, Enabled])[2..],
            [In, In, On]
        );
    }

    #[test]
    fn it_is_switched_off_once() {
        assert_eq!(Out.next(SwitchedOff), None);
        assert_eq!(In.next(SwitchedOff), None);
        assert_eq!(On.next(SwitchedOff), Some(In));
    }

    #[test]
    fn it_does_not_go_while_it_takes_work_down() {
        assert_eq!(after(&[Subscribed, Enabled, Finalised])[2], On);
        assert_eq!(after(&[Subscribed, Enabled, Released])[2], On);
    }

    #[test]
    fn it_comes_again_after_it_was_given_up() {
        let given_up = [Subscribed, Enabled, SwitchedOff, Released, Subscribed];
        assert_eq!(after(&given_up)[3..], [Out, In]);
    }
}
