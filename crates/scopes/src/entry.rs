//! One of the things that a thread has open, and what it keeps of native calls.

use core::cell::Cell;
use core::ops::Range;

use tllmprof_platform::maps::Maps;
use tllmprof_platform::{ids, stack, thread};

use crate::paths;

/// How many may be open: what lies deeper is not known.
pub const DEEPEST: usize = 64;
/// The domain of native functions.
pub const NATIVE: usize = 2;
/// How often a thread looks up where its stack lies: a call may be on another's.
const LOOKS: u32 = 16;
/// The stack of the first thread grows. So far at least nothing else is mapped below its end: the kernel leaves 128 MiB.
const GROWS: usize = 64 << 20;

/// Of ranges each domain has a stack of its own.
pub struct Entry {
    pub domain: Cell<usize>,
    pub path: Cell<u32>,
    /// Of a native call, as [`crate::native::Call`] has them.
    pub mark: Cell<u32>,
    pub place: Cell<usize>,
    pub value: Cell<usize>,
    /// Says what is open within the path, from moment to moment.
    pub within: Cell<Option<&'static dyn Within>>,
}

/// Code that several scopes have launches in without opening them, as a compiled model's.
pub trait Within: Sync {
    /// The innermost part of the scope that the calling thread is in now; `None`: there is none. May be called while the thread
    /// is in a call of CUDA: it takes no lock and allocates nothing.
    fn now(&self) -> Option<&'static [u8]>;
}

impl Entry {
    pub fn scope(&self) -> u32 {
        let path = self.path.get();
        match self.within.get().and_then(Within::now) {
            Some(name) => paths::within(path, name),
            None => path,
        }
    }

    pub fn become_that_of(&self, other: &Self) {
        self.domain.set(other.domain.get());
        self.within.set(other.within.get());
        self.mark.set(other.mark.get());
        self.place.set(other.place.get());
        self.value.set(other.value.get());
    }

    /// Whether the call is under way, on the stack that `here` is on, too.
    pub fn is_under_way(&self, here: usize) -> bool {
        let place = self.place.get();
        if place <= here {
            return false;
        }
        // SAFETY: a word of the thread's own stack, as is `here`, which lies below: all between them is in use.
        let value = unsafe { core::ptr::with_exposed_provenance::<usize>(place).read_volatile() };
        value == self.value.get()
    }
}

/// What a thread keeps of native calls, besides what is open.
pub struct Calls {
    /// How many of the open things are native calls.
    pub open: Cell<usize>,
    /// A call has been entered for which there was no room, and nothing has ended since.
    pub is_over_full: Cell<bool>,
    /// Where the thread's stack lies, as far as that is known.
    stack: [Cell<usize>; 2],
    looks: Cell<u32>,
    /// Marks of calls that an exception has left, and how many: what unwinds may still read what belongs to the marks.
    pub left: [Cell<u32>; DEEPEST],
    pub left_count: Cell<usize>,
    /// Where the stack was when the latest was left: in the midst of what unwinds.
    pub left_below: Cell<usize>,
}

impl Calls {
    /// For the next thread. What an earlier one has left is kept.
    pub fn begin(&self) {
        self.open.set(0);
        self.is_over_full.set(false);
        for end in &self.stack {
            end.set(0);
        }
        self.looks.set(0);
        self.left_below.set(0);
    }

    pub fn stack(&self) -> Range<usize> {
        self.stack[0].get()..self.stack[1].get()
    }

    /// Whether `place` lies in the thread's own stack.
    pub fn is_own_stack(&self, place: usize) -> bool {
        if self.stack().contains(&place) {
            return true;
        }
        if self.looks.get() == LOOKS {
            return false;
        }
        // It may have hardly any room, and is not the thread's own stack.
        if stack::of_signal_handler().is_some() {
            return false;
        }
        self.looks.set(self.looks.get() + 1);
        let Ok(maps) = Maps::read() else { return false };
        let Some(mapping) = maps.at(place) else {
            return false;
        };
        // A thread's own words lie on top of its stack. Those of the first thread lie elsewhere.
        let own = mapping.start..mapping.end;
        let is_first = ids::thread() == ids::process() && own.contains(&first_stack());
        let is_own = is_first || own.contains(&thread::address());
        if is_own {
            let lowest = match is_first {
                true => own.start.min(own.end.saturating_sub(GROWS)),
                false => own.start,
            };
            self.stack[0].set(lowest);
            self.stack[1].set(own.end);
        }
        is_own
    }
}

/// An address in the first thread's stack: where the kernel has put the random bytes for the program.
fn first_stack() -> usize {
    // SAFETY: takes and returns numbers.
    unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
}
