//! An open scope (a range, module or function) of a thread, and the data that a thread stores for its calls of native
//! functions.

use core::cell::Cell;
use core::ops::Range;

use tllmprof_platform::maps::Maps;
use tllmprof_platform::{ids, stack, thread};

use crate::paths;

/// Maximum number of open scopes that are stored for a thread. Scopes that are nested deeper are only counted.
pub(crate) const DEEPEST: usize = 64;
/// The number of the domain for calls of native functions. A domain is a separate stack of open
/// scopes.
pub(crate) const NATIVE: usize = 2;
/// Maximum number of times that a thread looks up the bounds of its stack. Without the limit, a thread that runs on a
/// stack of its own (a coroutine) would repeat a failing look-up at each call.
const LOOKS: u32 = 16;
/// The assumed maximum size, in bytes, of the stack of the process's first thread. This stack grows, and the kernel
/// keeps 128 MiB below it free, so nothing else is mapped within this size.
const GROWS: usize = 64 << 20;

/// An open scope of a thread. It belongs to a domain (a separate stack of scopes), such as that of native calls.
pub(crate) struct OpenScope {
    pub domain: Cell<usize>,
    pub path: Cell<u32>,
    /// For a native call, the number (mark) by which this entry is found when the call ends.
    pub mark: Cell<u32>,
    /// For a native call, the stack address at which the call's return address is stored.
    pub place: Cell<usize>,
    /// For a native call, the word that is stored at `place` until the call returns.
    pub value: Cell<usize>,
    /// Set if this entry stands for code whose scope changes while it runs, such as the code of a compiled model.
    /// `Within::now` returns the innermost part of the current scope.
    pub within: Cell<Option<&'static dyn Within>>,
}

/// Code that runs in several scopes without opening them, such as that of a compiled model.
pub trait Within: Sync {
    /// Returns the innermost part of the scope that the calling thread is in now, or `None` if the thread is in no
    /// scope of this code. This function may run inside a CUDA call, so it must neither take a lock nor allocate.
    fn now(&self) -> Option<&'static [u8]>;
}

impl OpenScope {
    pub(crate) fn scope(&self) -> u32 {
        let path = self.path.get();
        match self.within.get().and_then(Within::now) {
            Some(name) => paths::within(path, name),
            None => path,
        }
    }

    pub(crate) fn become_that_of(&self, other: &Self) {
        self.domain.set(other.domain.get());
        self.within.set(other.within.get());
        self.mark.set(other.mark.get());
        self.place.set(other.place.get());
        self.value.set(other.value.get());
    }

    /// Returns true if the native call has not returned. `here` is an address in the stack frame that runs now.
    pub(crate) fn is_under_way(&self, here: usize) -> bool {
        let place = self.place.get();
        if place <= here {
            return false;
        }
        // SAFETY: `place` is a word of the thread's own stack. It lies above `here`, which is also
        // on this stack, and everything between them is in use.
        let value = unsafe { core::ptr::with_exposed_provenance::<usize>(place).read_volatile() };
        value == self.value.get()
    }
}

/// The data that a thread stores for calls of native functions, besides its open scopes.
pub(crate) struct NativeCalls {
    /// Number of open scopes of the thread that are native calls.
    pub open: Cell<usize>,
    /// True if a native call could not be stored, for example because too many scopes were open or the call is on
    /// another stack, and no native call has ended since.
    pub is_over_full: Cell<bool>,
    /// The start and end of the thread's stack; both 0 until they are looked up.
    stack: [Cell<usize>; 2],
    looks: Cell<u32>,
    /// The marks (see [`crate::native::NativeCall`]) of calls that an exception has left; only the first `left_count`
    /// are valid. No new call may get these marks yet, because the unwinder may still read data that belongs to them.
    pub left: [Cell<u32>; DEEPEST],
    pub left_count: Cell<usize>,
    /// The stack pointer when an exception left the last call in `left`. This address lies inside the unwinder's
    /// frames.
    pub left_below: Cell<usize>,
}

impl NativeCalls {
    /// Resets all fields for a new thread, except the marks in `left`. These marks belong to calls of an earlier thread
    /// that an exception has left.
    pub(crate) fn begin(&self) {
        self.open.set(0);
        self.is_over_full.set(false);
        for end in &self.stack {
            end.set(0);
        }
        self.looks.set(0);
        self.left_below.set(0);
    }

    pub(crate) fn stack(&self) -> Range<usize> {
        self.stack[0].get()..self.stack[1].get()
    }

    /// Returns true if the address `place` is on the thread's own stack.
    pub(crate) fn is_own_stack(&self, place: usize) -> bool {
        if self.stack().contains(&place) {
            return true;
        }
        if self.looks.get() == LOOKS {
            return false;
        }
        // Do not look up the bounds while the thread runs on the stack of a signal handler. That stack is not the
        // thread's own, and may have hardly any space left for the look-up.
        if stack::of_signal_handler().is_some() {
            return false;
        }
        self.looks.set(self.looks.get() + 1);
        let Ok(maps) = Maps::read() else { return false };
        let Some(mapping) = maps.at(place) else {
            return false;
        };
        // The mapping is the thread's own stack if it contains an address that is known to be on this stack. A thread's
        // thread-local variables are at the top of its stack. The random bytes that the kernel gives to the process are
        // on the first thread's stack.
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

/// Returns an address on the first thread's stack. The kernel stores random bytes there for the
/// program.
fn first_stack() -> usize {
    // SAFETY: the function takes and returns numbers.
    unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
}
