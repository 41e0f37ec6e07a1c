//! Limits the C stack that a thread may use while the library's frame evaluator reports its calls, in CPython 3.11.
//!
//! In 3.11, a call from Python to Python uses C stack only if a custom evaluator is set. With the library's evaluator,
//! a program that has raised the recursion limit could overflow its stack.

use core::ops::Range;

use super::Spans;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::stack;

/// The lower part of a thread's stack. While the stack pointer is in it, the thread's calls are not reported, so that
/// the program has this stack for itself.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    start: usize,
    end: usize,
}

impl Room {
    /// The limit is not known yet, so every address counts as inside this part.
    pub(crate) const UNKNOWN: Self = Self {
        start: 0,
        end: usize::MAX,
    };
    const NONE: Self = Self { start: 0, end: 0 };
}

/// Checks of a thread's use of its stack. Only the thread itself may call these functions.
impl Spans {
    /// Returns true if the thread may have reached the limit of its stack use. [`Spans::is_short`]
    /// makes the exact check.
    #[inline]
    pub(crate) fn may_be_short(&self) -> bool {
        stack::here() < self.room.get().end
    }

    /// Returns true if the thread has reached the limit of its stack use. The first call determines where the limit
    /// is.
    pub(crate) fn is_short(&self) -> bool {
        let mut room = self.room.get();
        if room.end == usize::MAX {
            let _errno = SavedErrno::new();
            let half = |stack: Range<usize>| Room {
                start: stack.start,
                end: stack.start.midpoint(stack.end),
            };
            room = stack::bounds().map_or(Room::NONE, half);
            self.room.set(room);
        }
        // An address below this part of the stack is on another stack, such as that of a fiber (a coroutine with a C
        // stack of its own). The limit does not apply there.
        (room.start..room.end).contains(&stack::here())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_half_of_a_threads_stack_is_ours() {
        let spans = Spans::new();
        assert!(spans.may_be_short()); // the limit is not known yet
        assert!(!spans.is_short());
        assert!(!spans.may_be_short());
        let here = stack::here();
        spans.room.set(Room {
            start: here - 4096,
            end: here + 4096,
        });
        assert!(spans.may_be_short() && spans.is_short());
        // Simulate a call on another stack, such as that of a fiber, at lower addresses.
        spans.room.set(Room {
            start: here + (1 << 20),
            end: here + (2 << 20),
        });
        assert!(spans.may_be_short() && !spans.is_short());
        spans.room.set(Room::NONE);
        assert!(!spans.may_be_short() && !spans.is_short());
    }
}
