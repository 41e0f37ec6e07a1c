//! Measures the host's time between a wait and the next launch (a pause), while the learner learns.

use crate::trail::slot;

/// A function that returns the time in nanoseconds. It is called only when the learner needs the time.
pub type Clock<'a> = &'a dyn Fn() -> u64;

/// The time of a history entry (a wait or a copy), and the pause before the first launch after the thread's previous
/// wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryTimes {
    /// The time of the entry, in units of 2^`UNIT` nanoseconds. It wraps around after 2^38 ns (about 4.6 minutes).
    at: u32,
    /// The pause in nanoseconds; 0 if it was not measured.
    pub pause: u32,
}

impl EntryTimes {
    pub(crate) const NONE: Self = Self { at: 0, pause: 0 };
    /// The unit of `at`, as the exponent of a power of two nanoseconds.
    const UNIT: u32 = 6;

    /// Returns the nanoseconds from the entry `earlier` to this entry. The result is less than 2^38, because
    /// times wrap around.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        u64::from(self.at.wrapping_sub(earlier.at)) << Self::UNIT
    }
}

/// Measures pauses. A pause is the time from the return of a thread's wait to its next launch.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// The thread whose wait returned last, and the time of that return in nanoseconds. `None` once the
    /// thread has launched something.
    returned: Option<(u32, u64)>,
    /// The thread whose pause was measured last, and the pause in nanoseconds. `None` once a history entry contains it.
    measured: Option<(u32, u32)>,
}

impl Pauses {
    pub(crate) const fn new() -> Self {
        Self {
            returned: None,
            measured: None,
        }
    }

    /// Returns the thread whose next launch ends the current pause, if there is one.
    pub(crate) fn waits_for_launch_of(&self) -> Option<u32> {
        self.returned.map(|(thread, _)| thread)
    }

    /// Called when a wait of `thread` has returned. Begins a pause of the thread.
    pub(crate) fn returned(&mut self, thread: u32, clock: Clock) {
        self.returned = Some((thread, clock()));
    }

    /// Called when `thread` launches something. Ends the thread's pause, if there is one.
    #[inline]
    pub(crate) fn launched(&mut self, thread: u32, clock: Clock) {
        let Some((waited, since)) = self.returned else {
            return;
        };
        if slot(waited) == slot(thread) {
            let pause = clock().saturating_sub(since);
            self.measured = Some((thread, u32::try_from(pause).unwrap_or(u32::MAX)));
            self.returned = None;
        }
    }

    /// Returns the times for a history entry (a wait or a copy) that this thread makes now.
    pub(crate) fn take(&mut self, thread: u32, clock: Clock) -> EntryTimes {
        let pause = match self.measured {
            Some((of, pause)) if slot(of) == slot(thread) => {
                self.measured = None;
                pause.max(1)
            }
            _ => 0,
        };
        EntryTimes {
            at: (clock() >> EntryTimes::UNIT) as u32,
            pause,
        }
    }
}
