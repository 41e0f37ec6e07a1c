//! Decides whether the worker (a thread of this library that creates CUDA events in advance) may create events. The
//! worker must not use a context that is about to be destroyed.
//!
//! | state         | `Begins` | `Ends`      | `Dooms`         | `Gone`                      |
//! |---------------|----------|-------------|-----------------|-----------------------------|
//! | `Idle`        | `Busy`   |             | `Barred(1)`     |                             |
//! | `Busy`        |          | `Idle`      | `Stopping(1)`   |                             |
//! | `Stopping(n)` |          | `Barred(n)` | `Stopping(n+1)` | `Stopping(n-1)` or `Busy`   |
//! | `Barred(n)`   |          |             | `Barred(n+1)`   | `Barred(n-1)` or `Idle`     |
//!
//! In an empty field the state does not change. `Gone` leads to `Busy` or `Idle` if n is 1. A thread that destroys a
//! context waits, for a limited time, until the state is no longer `Stopping`. If this wait times out, `Gone` may come
//! before the worker has stopped. The worker then continues.

use tllmprof_sync::States;

/// A state of the worker, which creates CUDA events in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// The worker is creating no CUDA events. It may begin to create some.
    Idle,
    /// The worker is creating CUDA events. It may continue to create them.
    Busy,
    /// The worker has to stop, because this number of contexts are about to be destroyed.
    Stopping(u32),
    /// The worker may not start, because this number of contexts are about to be destroyed.
    Barred(u32),
}

/// An occurrence that changes the worker's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreationEvent {
    /// The worker is about to create CUDA events.
    Begins,
    /// The worker has finished creating CUDA events.
    Ends,
    /// A context is about to be destroyed.
    Dooms,
    /// The context is destroyed, or the thread that destroys it no longer waits for the worker.
    Gone,
}

impl Making {
    /// Returns true if the worker may create one more CUDA event.
    pub(crate) const fn goes_on(self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Returns true if the worker may be creating a CUDA event.
    pub(crate) const fn is_under_way(self) -> bool {
        matches!(self, Self::Busy | Self::Stopping(_))
    }

    const fn new(is_under_way: bool, doomed: u32) -> Self {
        match (is_under_way, doomed) {
            (false, 0) => Self::Idle,
            (true, 0) => Self::Busy,
            (true, doomed) => Self::Stopping(doomed),
            (false, doomed) => Self::Barred(doomed),
        }
    }

    /// Returns the number of contexts that are about to be destroyed.
    const fn doomed(self) -> u32 {
        match self {
            Self::Idle | Self::Busy => 0,
            Self::Stopping(doomed) | Self::Barred(doomed) => doomed,
        }
    }
}

impl States for Making {
    type Event = CreationEvent;

    fn next(self, event: CreationEvent) -> Option<Self> {
        let (is_under_way, doomed) = (self.is_under_way(), self.doomed());
        match event {
            CreationEvent::Begins => (self == Self::Idle).then_some(Self::Busy),
            CreationEvent::Ends => is_under_way.then_some(Self::new(false, doomed)),
            CreationEvent::Dooms => Some(Self::new(is_under_way, doomed + 1)),
            CreationEvent::Gone => Some(Self::new(is_under_way, doomed.checked_sub(1)?)),
        }
    }

    fn to_bits(self) -> u32 {
        self.doomed() << 1 | u32::from(self.is_under_way())
    }

    fn from_bits(bits: u32) -> Self {
        Self::new(bits & 1 != 0, bits >> 1)
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_sync::States;

    use super::super::phase::{self, SamplingPhase};
    use super::CreationEvent::{self, Begins, Dooms, Ends, Gone};
    use super::Making::{self, Barred, Busy, Idle, Stopping};

    fn after(events: &[CreationEvent]) -> Vec<Making> {
        let mut state = Idle;
        let on = |event: &CreationEvent| {
            state = state.next(*event).unwrap_or(state);
            state
        };
        events.iter().map(on).collect()
    }

    #[test]
    fn a_word_holds_each_state() {
        for state in [Idle, Busy, Stopping(1), Stopping(7), Barred(1)] {
            assert_eq!(Making::from_bits(state.to_bits()), state);
        }
        assert_eq!(Idle.to_bits(), 0);
    }

    #[test]
    fn a_context_goes_while_nothing_is_made() {
        assert_eq!(after(&[Dooms, Gone]), [Barred(1), Idle]);
        assert_eq!(
            after(&[Begins, Ends, Dooms, Gone])[1..],
            [Idle, Barred(1), Idle]
        );
    }

    #[test]
    fn nothing_is_made_while_a_context_goes() {
        assert_eq!(
            after(&[Dooms, Begins, Gone, Begins]),
            [Barred(1), Barred(1), Idle, Busy]
        );
    }

    #[test]
    fn a_context_that_goes_mid_making_stops_it() {
        let states = after(&[Begins, Dooms, Ends, Begins, Gone]);
        assert_eq!(states, [Busy, Stopping(1), Barred(1), Barred(1), Idle]);
        assert!(states[0].goes_on() && !states[1].goes_on());
        assert!(states[1].is_under_way() && !states[2].is_under_way());
    }

    #[test]
    fn a_window_that_closes_while_events_are_made_leaves_the_worker_to_who_destroys_the_context() {
        let mut phase = SamplingPhase::Unused;
        let mut happens = |event| phase = phase.next(event).unwrap_or(phase);
        happens(phase::PhaseEvent::Opens);
        let mut making = after(&[Begins])[0];
        happens(phase::PhaseEvent::Closes);
        happens(phase::PhaseEvent::AllRead);
        assert!(making.goes_on() && phase.has_events());
        for (event, next) in [(Dooms, Stopping(1)), (Ends, Barred(1)), (Gone, Idle)] {
            making = making.next(event).unwrap_or(making);
            assert_eq!(making, next);
        }
        assert_eq!(phase, SamplingPhase::Resting);
    }

    #[test]
    fn who_waited_too_long_for_the_worker_does_not_stop_it_for_good() {
        assert_eq!(
            after(&[Begins, Dooms, Gone, Ends]),
            [Busy, Stopping(1), Busy, Idle]
        );
    }

    #[test]
    fn contexts_that_go_at_the_same_time_are_waited_for_one_and_all() {
        assert_eq!(
            after(&[Begins, Dooms, Dooms, Gone, Ends, Gone]),
            [Busy, Stopping(1), Stopping(2), Stopping(1), Barred(1), Idle]
        );
    }

    #[test]
    fn ends_without_a_beginning_change_nothing() {
        assert_eq!(after(&[Ends, Gone]), [Idle, Idle]);
    }
}
