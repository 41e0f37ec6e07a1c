//! The host's time between a wait and the next launch, measured while the learner learns.

use crate::trail::slot;

/// A clock's reading, in nanoseconds. It is read only where the learner wants to know the time.
pub type Clock<'a> = &'a dyn Fn() -> u64;

/// When an entry of the history was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    /// The time, in units of [`Times::UNIT`]; it wraps after four minutes.
    at: u32,
    /// The pause that came before the entry's first launch, in nanoseconds; 0: not measured.
    pub pause: u32,
}

impl Times {
    pub const NONE: Self = Self { at: 0, pause: 0 };
    /// Nanoseconds, as a power of two.
    const UNIT: u32 = 6;

    /// Nanoseconds from `earlier` to this entry, less than 2^38.
    pub fn since(self, earlier: Self) -> u64 {
        u64::from(self.at.wrapping_sub(earlier.at)) << Self::UNIT
    }
}

/// Measures pauses: from the return of a thread's wait to its next launch.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// The thread whose wait returned last, and when; it has launched nothing since.
    returned: Option<(u32, u64)>,
    /// The thread whose pause was measured last, and the pause.
    measured: Option<(u32, u32)>,
}

impl Pauses {
    pub const fn new() -> Self {
        Self {
            returned: None,
            measured: None,
        }
    }

    /// The thread whose next launch ends a pause.
    pub fn waits_for_launch_of(&self) -> Option<u32> {
        self.returned.map(|(thread, _)| thread)
    }

    /// A wait of this thread has returned.
    pub fn returned(&mut self, thread: u32, clock: Clock) {
        self.returned = Some((thread, clock()));
    }

    /// This thread launches.
    #[inline]
    pub fn launched(&mut self, thread: u32, clock: Clock) {
        let Some((waited, since)) = self.returned else {
            return;
        };
        if slot(waited) == slot(thread) {
            let pause = clock().saturating_sub(since);
            self.measured = Some((thread, u32::try_from(pause).unwrap_or(u32::MAX)));
            self.returned = None;
        }
    }

    /// The times of an entry that this thread makes now.
    pub fn take(&mut self, thread: u32, clock: Clock) -> Times {
        let pause = match self.measured {
            Some((of, pause)) if slot(of) == slot(thread) => {
                self.measured = None;
                pause.max(1)
            }
            _ => 0,
        };
        Times {
            at: (clock() >> Times::UNIT) as u32,
            pause,
        }
    }
}
