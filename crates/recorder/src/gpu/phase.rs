//! The phases of GPU timing in a process. A window is a period in which events are recorded.
//!
//! | state     | `Opens`  | `Closes`  | `AllRead` | `GivesUp` |
//! |-----------|----------|-----------|-----------|-----------|
//! | `Unused`  | `Timing` |           |           | `Over`    |
//! | `Resting` | `Timing` |           |           | `Over`    |
//! | `Timing`  |          | `Reading` |           | `Failing` |
//! | `Reading` |          |           | `Resting` | `Failing` |
//! | `Failing` |          |           | `Over`    |           |
//! | `Over`    |          |           |           |           |
//!
//! In an empty field the phase does not change. The child of a fork begins as `Unused`.

use tllmprof_sync::States;

/// A phase of GPU timing in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum SamplingPhase {
    /// No window has opened yet: no CUDA events exist, and the driver's version is not yet in the record.
    Unused,
    /// Between windows: CUDA events exist, but no streams are known.
    Resting,
    /// A window is open, and GPU times are measured in it.
    Timing,
    /// The window's last times are being read. No other thread may use a CUDA event.
    Reading,
    /// A thread took too long in the driver, so GPU timing has stopped. [`super::end`] has not been called since then.
    Failing,
    /// GPU timing has stopped for the rest of the process. If it stopped in a window, [`super::end`] has been called
    /// since then.
    Over,
}

/// An occurrence that changes the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseEvent {
    /// A window opens. GPU times are measured from here on.
    Opens,
    /// The window has closed. Its last times are read next.
    Closes,
    /// The window's last times have been read, as far as possible.
    AllRead,
    /// A thread takes too long in the driver, so GPU timing must stop: it is not known which objects the
    /// thread still uses.
    GivesUp,
}

impl SamplingPhase {
    /// Returns true if threads may use CUDA events now.
    pub(crate) const fn may_use_events(self) -> bool {
        !matches!(self, Self::Reading | Self::Failing | Self::Over)
    }

    /// Returns true if CUDA events may exist that are still in use. After GPU timing has stopped, no event is used
    /// any more.
    pub(crate) const fn has_events(self) -> bool {
        matches!(self, Self::Resting | Self::Timing | Self::Reading)
    }

    /// Returns true if a window has opened and [`super::end`] has not finished with it yet.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Timing | Self::Reading | Self::Failing)
    }

    /// Returns true if GPU timing has stopped in this process.
    pub(crate) const fn is_over(self) -> bool {
        matches!(self, Self::Failing | Self::Over)
    }
}

impl States for SamplingPhase {
    type Event = PhaseEvent;

    fn next(self, event: PhaseEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::Unused | Self::Resting, PhaseEvent::Opens) => Self::Timing,
            (Self::Timing, PhaseEvent::Closes) => Self::Reading,
            (Self::Reading, PhaseEvent::AllRead) => Self::Resting,
            (Self::Failing, PhaseEvent::AllRead) => Self::Over,
            (Self::Unused | Self::Resting, PhaseEvent::GivesUp) => Self::Over,
            (Self::Timing | Self::Reading, PhaseEvent::GivesUp) => Self::Failing,
            _ => return None,
        })
    }

    fn to_bits(self) -> u32 {
        self as u32
    }

    #[inline]
    fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Unused,
            1 => Self::Resting,
            2 => Self::Timing,
            3 => Self::Reading,
            4 => Self::Failing,
            _ => Self::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_sync::States;

    use super::PhaseEvent::{self, AllRead, Closes, GivesUp, Opens};
    use super::SamplingPhase::{self, Failing, Over, Reading, Resting, Timing, Unused};

    const ALL: [SamplingPhase; 6] = [Unused, Resting, Timing, Reading, Failing, Over];

    /// Returns the phase that follows each of `events`, starting with `Unused`.
    fn after(events: &[PhaseEvent]) -> Vec<SamplingPhase> {
        let mut phase = Unused;
        let on = |event: &PhaseEvent| {
            phase = phase.next(*event).unwrap_or(phase);
            phase
        };
        events.iter().map(on).collect()
    }

    #[test]
    fn a_word_holds_each_state() {
        for phase in ALL {
            assert_eq!(SamplingPhase::from_bits(phase.to_bits()), phase);
        }
        assert_eq!(Unused.to_bits(), 0);
    }

    #[test]
    fn windows_come_and_go() {
        assert_eq!(
            after(&[Opens, Closes, AllRead, Opens, Closes, AllRead]),
            [Timing, Reading, Resting, Timing, Reading, Resting]
        );
    }

    #[test]
    fn what_closes_without_a_window_changes_nothing() {
        assert_eq!(after(&[Closes, AllRead]), [Unused, Unused]);
        let events = [Opens, Closes, AllRead, Closes, AllRead];
        assert_eq!(after(&events)[2..], [Resting; 3]);
    }

    #[test]
    fn who_gives_up_in_a_window_ends_it_for_good() {
        assert_eq!(
            after(&[Opens, GivesUp, Closes, AllRead, Opens]),
            [Timing, Failing, Failing, Over, Over]
        );
    }

    #[test]
    fn who_gives_up_while_the_last_times_are_read_does_not_bring_the_next_window() {
        assert_eq!(
            after(&[Opens, Closes, GivesUp, AllRead, Opens]),
            [Timing, Reading, Failing, Over, Over]
        );
    }

    #[test]
    fn who_gives_up_between_windows_brings_no_other() {
        let events = [Opens, Closes, AllRead, GivesUp, Opens];
        assert_eq!(after(&events)[3..], [Over, Over]);
    }

    #[test]
    fn a_window_that_opens_twice_is_one() {
        assert_eq!(after(&[Opens, Opens, Closes]), [Timing, Timing, Reading]);
    }

    #[test]
    fn nobody_uses_events_while_they_are_read_or_given_up() {
        let may_not: Vec<_> = ALL.into_iter().filter(|p| !p.may_use_events()).collect();
        assert_eq!(may_not, [Reading, Failing, Over]);
    }

    #[test]
    fn a_doomed_context_takes_events_with_it_from_the_first_window_on() {
        let has: Vec<_> = ALL.into_iter().filter(|p| p.has_events()).collect();
        assert_eq!(has, [Resting, Timing, Reading]);
    }
}
