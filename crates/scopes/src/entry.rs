//! An open scope of a thread, and the state that the thread keeps for native calls.

use core::cell::Cell;
use core::ops::Range;

use tllmprof_platform::maps::Maps;
use tllmprof_platform::{ids, stack, thread};

use crate::paths;

/// The largest number of open scopes. Deeper ones are not known.
pub const DEEPEST: usize = 64;
/// The domain of native functions.
pub const NATIVE: usize = 2;
/// The number of times that a thread looks up its stack's bounds: a call may be on another stack.
const LOOKS: u32 = 16;
/// The stack of the first thread grows. Up to this size nothing else is mapped below its end: the kernel
/// leaves 128 MiB.
const GROWS: usize = 64 << 20;

/// An open scope. Ranges are on a stack of their own for each domain.
pub struct OpenScope {
    pub domain: Cell<usize>,
    pub path: Cell<u32>,
    /// The fields of a native call, as in [`crate::native::Call`].
    pub mark: Cell<u32>,
    pub place: Cell<usize>,
    pub value: Cell<usize>,
    /// Returns the innermost open part within the path, at any moment.
    pub within: Cell<Option<&'static dyn Within>>,
}

/// Code that is shared by several scopes, which launch in it without opening them, such as a compiled model's
/// code.
pub trait Within: Sync {
    /// Returns the innermost part of the scope that the calling thread is in now; `None`: none. May be called
    /// while the thread is in a CUDA call: it neither takes a lock nor allocates.
    fn now(&self) -> Option<&'static [u8]>;
}

impl OpenScope {
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

    /// Returns true if the call is in progress, on the stack that contains `here`.
    pub fn is_under_way(&self, here: usize) -> bool {
        let place = self.place.get();
        if place <= here {
            return false;
        }
        // SAFETY: a word of the thread's own stack, like `here`, which is below it: everything between them
        // is in use.
        let value = unsafe { core::ptr::with_exposed_provenance::<usize>(place).read_volatile() };
        value == self.value.get()
    }
}

/// The state that a thread keeps for native calls, besides the open scopes.
pub struct NativeCalls {
    /// The number of open scopes that are native calls.
    pub open: Cell<usize>,
    /// True if a call was entered for which there was no room, and nothing has ended since.
    pub is_over_full: Cell<bool>,
    /// The bounds of the thread's stack, as far as they are known.
    stack: [Cell<usize>; 2],
    looks: Cell<u32>,
    /// The marks of calls that an exception has left, and their number: the unwinder may still read data that
    /// belongs to the marks.
    pub left: [Cell<u32>; DEEPEST],
    pub left_count: Cell<usize>,
    /// The stack pointer when the latest of them was left, within the unwinder.
    pub left_below: Cell<usize>,
}

impl NativeCalls {
    /// Prepares for the next thread. Marks that an earlier thread has left are kept.
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

    /// Returns true if `place` lies in the thread's own stack.
    pub fn is_own_stack(&self, place: usize) -> bool {
        if self.stack().contains(&place) {
            return true;
        }
        if self.looks.get() == LOOKS {
            return false;
        }
        // A signal handler's stack may have hardly any room, and is not the thread's own stack.
        if stack::of_signal_handler().is_some() {
            return false;
        }
        self.looks.set(self.looks.get() + 1);
        let Ok(maps) = Maps::read() else { return false };
        let Some(mapping) = maps.at(place) else {
            return false;
        };
        // A thread's thread-local words are at the top of its stack, except for the first thread.
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

/// Returns an address in the first thread's stack: that of the random bytes that the kernel passes to the
/// program.
fn first_stack() -> usize {
    // SAFETY: takes and returns numbers.
    unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
}
