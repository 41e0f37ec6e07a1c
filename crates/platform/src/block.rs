//! The few words of each thread that the assembler reads, and what they say: where the thread's calls
//! are counted, which call of it is the outermost, whether it is in the library's own code.

#[cfg_attr(target_arch = "aarch64", path = "block/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "block/x86_64.rs")]
mod arch;

use core::cell::Cell;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::{from_ref, null};

/// The calling thread's own words, in initial-exec thread-local storage. All zeros in a new thread.
/// 64 bytes, so that a process that loads many libraries still finds room in the static TLS area.
#[repr(C)]
pub struct Block {
    /// The thread's cells, null before its first call.
    cells: Cell<*const c_void>,
    /// Where the outermost intercepted call's return address lies on the stack, 0 for none.
    outer: Cell<usize>,
    /// What that return address is.
    outer_return: Cell<usize>,
    /// What [`crate::thread`] keeps of the thread, null before its first event.
    record: Cell<*const c_void>,
    /// Where the thread's calls are noted; null for nowhere, as while it captures a stream.
    trail: Cell<*const c_void>,
    /// 1 while the thread is in the library's own code.
    inside: Cell<usize>,
    /// 1 while a look-up of the thread is being thought about.
    looking_up: Cell<usize>,
    /// What the thread writes to the record with, null before its first event: without a look into its record.
    writer: Cell<*const c_void>,
}

const _: () = assert!(size_of::<Block>() == Block::SIZE);

/// Where the assembler finds the words, in bytes.
impl Block {
    pub const SIZE: usize = 64;
    pub const CELLS: usize = offset_of!(Self, cells);
    pub const OUTER: usize = offset_of!(Self, outer);
    pub const OUTER_RETURN: usize = offset_of!(Self, outer_return);
    pub const RECORD: usize = offset_of!(Self, record);
    pub const TRAIL: usize = offset_of!(Self, trail);
    const WRITER: usize = offset_of!(Self, writer);

    /// Has `act` use the calling thread's block.
    #[inline]
    fn with<R>(act: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the block is there as long as the thread is. Its words are cells, so that a signal
        // handler may use them in between, and no reference to them gets to another thread.
        act(unsafe { &*arch::block() })
    }
}

/// A number that no other living thread has: where the calling thread's block lies.
#[inline]
pub fn address() -> usize {
    arch::block().addr()
}

/// What is kept of the calling thread; null for nothing.
#[inline]
pub(crate) fn record() -> *const c_void {
    arch::word::<{ Block::RECORD }>()
}

/// Says what is kept of the calling thread.
pub(crate) fn set_record(record: *const c_void) {
    Block::with(|block| block.record.set(record));
}

/// What the calling thread writes to the record with; null for nothing.
#[inline]
pub(crate) fn writer() -> *const c_void {
    arch::word::<{ Block::WRITER }>()
}

/// Says what the calling thread writes to the record with.
pub(crate) fn set_writer(writer: *const c_void) {
    Block::with(|block| block.writer.set(writer));
}

/// Where the calling thread counts its calls; null for nowhere.
#[inline]
pub fn cells() -> *const c_void {
    Block::with(|block| block.cells.get())
}

/// Says where the calling thread counts its calls and where it notes them. Returns what
/// [`set_counting_of`] takes.
pub fn set_counting(cells: *const c_void, trail: *const c_void) -> usize {
    Block::with(|block| {
        block.cells.set(cells);
        block.trail.set(trail);
    });
    arch::block().expose_provenance()
}

/// As [`set_counting`], for another thread.
///
/// # Safety
/// `thread` came from [`set_counting`] on a thread that is still alive and does not read the words
/// meanwhile.
pub unsafe fn set_counting_of(thread: usize, cells: *const c_void, trail: *const c_void) {
    let block = core::ptr::with_exposed_provenance_mut::<Block>(thread);
    // SAFETY: `thread` is the address of a block, which `set_counting` exposed, and a block is there
    // as long as its thread, which is alive. The thread does not read the words meanwhile, so that the
    // stores race with nothing.
    unsafe {
        (&raw mut (*block).cells)
            .cast::<*const c_void>()
            .write_volatile(cells);
        (&raw mut (*block).trail)
            .cast::<*const c_void>()
            .write_volatile(trail);
    }
}

/// An intercepted call that others may be nested in: where its return address lies on the stack, and
/// what that is.
#[derive(Clone, Copy)]
pub struct Outer {
    pub place: usize,
    pub return_address: usize,
}

/// The outermost intercepted call of the calling thread; all zeros for none.
#[inline]
pub fn outer() -> Outer {
    Block::with(|block| Outer {
        place: block.outer.get(),
        return_address: block.outer_return.get(),
    })
}

/// Says which call of the calling thread is the outermost. The place must be readable until another
/// is said.
pub fn set_outer(outer: Outer) {
    Block::with(|block| {
        block.outer_return.set(outer.return_address);
        block.outer.set(outer.place);
    });
}

/// The calling thread has left its outermost intercepted call.
pub fn leave_outer() {
    set_outer(Outer {
        place: 0,
        return_address: 0,
    });
}

/// Runs `act` so that no call that it makes on this thread counts: they look nested in one that
/// has been counted.
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
    // The place is this frame's until here.
    core::hint::black_box(mark);
}

/// The thread is in the library's own code: a function that is named may be one that this uses, such
/// as an allocator's, or the call of a signal handler.
pub struct Inside(());

impl Inside {
    /// Enters; none where the thread is inside already.
    pub fn enter() -> Option<Self> {
        let was_inside = Block::with(|block| block.inside.replace(1));
        (was_inside == 0).then(|| Self(()))
    }

    /// Goes on beyond the end of a function, until [`Inside::leave`].
    pub fn stay(self) {
        core::mem::forget(self);
    }

    /// Ends what [`Inside::stay`] has kept up, in the same thread or in its copy after a fork.
    pub fn leave() {
        drop(Self(()));
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        Block::with(|block| block.inside.set(0));
    }
}

/// A look-up of the thread is being thought about. What that calls may be functions that the host looks up at
/// their first call: such a look-up goes straight on.
pub struct LookingUp(());

impl LookingUp {
    /// Begins; none where one is thought about already.
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
        // SAFETY: the thread is alive, and waits for word before it reads them.
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
