//! How far down its C stack a thread may evaluate calls through us, in CPython 3.11.
//!
//! There, calls from Python to Python take no C stack but where an evaluator is set. A program that
//! has raised the recursion limit may go deeper than its stack then has room for.

use core::ops::Range;

use crate::threads;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::stack;

/// The part of a thread's stack that is left to the program.
#[derive(Clone, Copy)]
pub struct Room {
    start: usize,
    end: usize,
}

impl Room {
    /// Every address may be in it.
    pub const UNKNOWN: Self = Self {
        start: 0,
        end: usize::MAX,
    };
    const NONE: Self = Self { start: 0, end: 0 };
}

/// Whether the calling thread may be as far down as it may go; [`is_short`] knows.
#[inline]
pub fn may_be_short() -> bool {
    threads::known().is_none_or(|thread| stack::here() < thread.spans.room.get().end)
}

/// Whether the calling thread is as far down as it may go.
#[cold]
#[inline(never)]
pub fn is_short() -> bool {
    let Some(thread) = threads::current() else {
        return false;
    };
    let mut room = thread.spans.room.get();
    if room.end == usize::MAX {
        let _errno = Kept::new();
        let half = |stack: Range<usize>| Room {
            start: stack.start,
            end: stack.start.midpoint(stack.end),
        };
        room = stack::bounds().map_or(Room::NONE, half);
        thread.spans.room.set(room);
    }
    // Below it is another stack, as of a coroutine.
    (room.start..room.end).contains(&stack::here())
}
