//! The block: a few thread-local words that the library's assembly code reads. Among them are the address of
//! the thread's call counters, its outermost intercepted call, and a flag that is set while the thread runs
//! the library's own code.

#[cfg_attr(target_arch = "aarch64", path = "block/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "block/x86_64.rs")]
mod arch;

use core::cell::Cell;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::{from_ref, null};

/// The calling thread's block of words, in initial-exec thread-local storage. A new thread's block is all zeros. It has
/// only 64 bytes, so that a process that loads many libraries still has room in the static TLS area.
#[repr(C)]
pub struct Block {
    /// The address of the thread's call counters; null before the thread's first call.
    cells: Cell<*const c_void>,
    /// The stack address at which the outermost intercepted call's return address lies; 0 if there is no such call.
    outer: Cell<usize>,
    /// The return address of the outermost intercepted call, as read at the stack address `outer`.
    outer_return: Cell<usize>,
    /// The thread's [`crate::thread::ThreadRecord`]; null before its first event.
    record: Cell<*const c_void>,
    /// The thread's trail (the list of its recent calls, which the step learner reads). Null if calls must
    /// not be noted, for example while the thread captures a stream.
    trail: Cell<*const c_void>,
    /// 1 while the thread runs the library's own code.
    inside: Cell<usize>,
    /// 1 while a symbol look-up of the thread (such as `dlsym`) is being handled.
    looking_up: Cell<usize>,
    /// The thread's writer, through which it writes events into the record file; null before its first event.
    /// `record` leads to the same writer, but this copy saves a load.
    writer: Cell<*const c_void>,
}

const _: () = assert!(size_of::<Block>() == Block::SIZE);

/// Offsets of the words in bytes, for the library's assembly code.
impl Block {
    pub const SIZE: usize = 64;
    pub const CELLS: usize = offset_of!(Self, cells);
    pub const OUTER: usize = offset_of!(Self, outer);
    pub const OUTER_RETURN: usize = offset_of!(Self, outer_return);
    pub const RECORD: usize = offset_of!(Self, record);
    pub const TRAIL: usize = offset_of!(Self, trail);
    const WRITER: usize = offset_of!(Self, writer);

    /// Runs `act` with the calling thread's block.
    #[inline]
    fn with<R>(act: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the block exists as long as the thread does. Its words are cells, so a signal handler may use them in
        // between, and no reference to them is passed to another thread.
        act(unsafe { &*arch::block() })
    }
}

/// Returns the address of the calling thread's block, which serves as a thread number: no other living thread
/// has the same one.
#[inline]
pub fn address() -> usize {
    arch::block().addr()
}

/// Returns the calling thread's [`crate::thread::ThreadRecord`] (the library's state for the thread), or null if it
/// has none.
#[inline]
pub(crate) fn record() -> *const c_void {
    arch::word::<{ Block::RECORD }>()
}

/// Sets the calling thread's [`crate::thread::ThreadRecord`], in which the library keeps its state for the thread.
pub(crate) fn set_record(record: *const c_void) {
    Block::with(|block| block.record.set(record));
}

/// Returns the calling thread's writer, through which it writes events into the record file; null if it has none.
#[inline]
pub(crate) fn writer() -> *const c_void {
    arch::word::<{ Block::WRITER }>()
}

/// Sets the calling thread's writer, through which it writes events into the record file.
pub(crate) fn set_writer(writer: *const c_void) {
    Block::with(|block| block.writer.set(writer));
}

/// Returns the calling thread's call counters, or null if it has none.
#[inline]
pub fn cells() -> *const c_void {
    Block::with(|block| block.cells.get())
}

/// Sets the calling thread's call counters and its trail (the list of recent calls for the step learner).
/// Returns a number for the thread, which [`set_counting_of`] takes.
pub fn set_counting(cells: *const c_void, trail: *const c_void) -> usize {
    Block::with(|block| {
        block.cells.set(cells);
        block.trail.set(trail);
    });
    arch::block().expose_provenance()
}

/// Sets the call counters and the trail of another thread. `thread` is the number that [`set_counting`] returned on
/// that thread.
///
/// # Safety
/// `thread` came from [`set_counting`] on a thread that is still alive and does not read the words at the same time.
pub unsafe fn set_counting_of(thread: usize, cells: *const c_void, trail: *const c_void) {
    let block = core::ptr::with_exposed_provenance_mut::<Block>(thread);
    // SAFETY: `thread` is the address of a block, which `set_counting` exposed. The block exists because its thread is
    // alive. The thread does not read the words at the same time, so the stores are not a race.
    unsafe {
        (&raw mut (*block).cells)
            .cast::<*const c_void>()
            .write_volatile(cells);
        (&raw mut (*block).trail)
            .cast::<*const c_void>()
            .write_volatile(trail);
    }
}

/// An intercepted call of the program, in which other calls may be nested. `place` is the stack address at
/// which its return address lies.
#[derive(Clone, Copy)]
pub struct Outer {
    pub place: usize,
    pub return_address: usize,
}

/// Returns the calling thread's outermost intercepted call, or all zeros if there is none.
#[inline]
pub fn outer() -> Outer {
    Block::with(|block| Outer {
        place: block.outer.get(),
        return_address: block.outer_return.get(),
    })
}

/// Sets the calling thread's outermost intercepted call. The stack address in `outer` must stay readable
/// until another outermost call is set.
pub fn set_outer(outer: Outer) {
    Block::with(|block| {
        block.outer_return.set(outer.return_address);
        block.outer.set(outer.place);
    });
}

/// Removes the mark of the outermost intercepted call, after the calling thread has left that call.
pub fn leave_outer() {
    set_outer(Outer {
        place: 0,
        return_address: 0,
    });
}

/// Runs `act` so that no CUDA call that it makes on this thread is counted: to the hooks, the calls seem to
/// be nested in a call that was already counted.
#[inline(never)]
pub fn uncounted(act: &mut dyn FnMut()) {
    let mark: usize = 0;
    let mark = core::hint::black_box(&mark);
    let before = outer();
    set_outer(Outer {
        place: from_ref(mark).expose_provenance(),
        return_address: *mark,
    });
    let trail = Block::with(|block| block.trail.replace(null()));
    act();
    Block::with(|block| block.trail.set(trail));
    set_outer(before);
    // This line keeps `mark` alive until here. The address of `mark` stands for a stack frame of this function.
    core::hint::black_box(mark);
}

/// The mark that the calling thread runs the library's own code. While it is set, the code that intercepts calls passes
/// them on without handling them. Such calls occur for two reasons. A rule may name a function that the library itself
/// uses, for example a function of an allocator. And a signal handler may make calls.
pub struct Inside(());

impl Inside {
    /// Sets the mark that the thread runs the library's own code. Returns `None` if the mark is
    /// already set.
    pub fn enter() -> Option<Self> {
        let was_inside = Block::with(|block| block.inside.replace(1));
        (was_inside == 0).then(|| Self(()))
    }

    /// Consumes this value but leaves the mark set, until [`Inside::leave`] removes it.
    pub fn stay(self) {
        core::mem::forget(self);
    }

    /// Removes the mark that [`Inside::stay`] has kept, in the same thread or in its copy after a fork.
    pub fn leave() {
        drop(Self(()));
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        Block::with(|block| block.inside.set(0));
    }
}

/// A mark that a symbol look-up of the calling thread is being handled. While it is set, a look-up is passed
/// to the real `dlsym`: handling the first look-up may call functions that are themselves looked up at their
/// first call.
pub struct LookingUp(());

impl LookingUp {
    /// Sets the mark that a look-up is being handled. Returns `None` if the mark is already set.
    pub fn enter() -> Option<Self> {
        let was_looking_up = Block::with(|block| block.looking_up.replace(1));
        (was_looking_up == 0).then(|| Self(()))
    }
}

impl Drop for LookingUp {
    fn drop(&mut self) {
        Block::with(|block| block.looking_up.set(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_code_is_entered_once_and_counts_nothing() {
        let inside = Inside::enter().unwrap();
        assert!(Inside::enter().is_none());
        drop(inside);
        Inside::enter().unwrap().stay();
        assert!(Inside::enter().is_none());
        Inside::leave();
        assert!(Inside::enter().is_some());
        let mut seen = None;
        uncounted(&mut || seen = Some(outer()));
        assert!(seen.is_some_and(|outer| outer.place != 0 && outer.return_address == 0));
        assert_eq!(outer().place, 0);
    }

    #[test]
    fn one_look_up_is_thought_about_at_a_time() {
        let looking_up = LookingUp::enter();
        assert!(looking_up.is_some() && LookingUp::enter().is_none());
        drop(looking_up);
        assert!(LookingUp::enter().is_some());
    }

    #[test]
    fn another_thread_says_where_a_thread_counts() {
        use std::sync::mpsc::channel;

        let at = core::ptr::without_provenance::<c_void>;
        let (says, said) = channel();
        let (changes, changed) = channel::<()>();
        let thread = std::thread::spawn(move || {
            assert!(cells().is_null());
            says.send((set_counting(at(8), at(16)), address())).unwrap();
            changed.recv().unwrap();
            [
                cells().addr(),
                Block::with(|block| block.trail.get()).addr(),
            ]
        });
        let (block, theirs) = said.recv().unwrap();
        assert!(block == theirs && theirs != address());
        // SAFETY: the thread is alive, and waits for a message before it reads the words.
        unsafe { set_counting_of(block, at(24), at(32)) };
        changes.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), [24, 32]);
    }

    #[test]
    fn what_does_not_count_is_not_noted_either() {
        let trail = || Block::with(|block| block.trail.get()).addr();
        set_counting(null(), core::ptr::without_provenance(16));
        let mut meanwhile = None;
        uncounted(&mut || meanwhile = Some(trail()));
        assert_eq!((meanwhile, trail()), (Some(0), 16));
        set_counting(null(), null());
    }
}
