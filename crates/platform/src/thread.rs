//! What the library keeps for each thread.
//!
//! A thread has a [`Block`], the few thread-local words that the assembler reads, and, from its
//! first event on, a [`Record`]: one key, one free list and one place for each component's state
//! (a [`Part`]). Records are never freed. The next new thread takes over the record of one that has
//! ended, with its parts, so that ten thousand short threads need no more records than ever ran at
//! once.

#[cfg_attr(target_arch = "aarch64", path = "thread/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "thread/x86_64.rs")]
mod arch;

use core::cell::Cell;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::{from_ref, null, null_mut};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::ids;
use crate::lifecycle::{self, OnlyThread};
use crate::pages::{self, Zeroed};
use tllmprof_sync::Published;

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
    /// What is kept of the thread, none before its first event.
    record: Cell<Option<&'static Record>>,
    /// Where the thread's calls are noted; null for nowhere, as while it captures a stream.
    trail: Cell<*const c_void>,
    /// 1 while the thread is in the library's own code.
    inside: Cell<usize>,
    reserved: [Cell<usize>; 2],
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

    /// Has `act` use the calling thread's block.
    #[inline]
    fn with<R>(act: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the block is there as long as the thread is. Its words are cells, so that a signal
        // handler may use them in between, and no reference to them gets to another thread.
        act(unsafe { &*arch::block() })
    }
}

/// The components that keep something for each thread, in the order in which they learn that the
/// thread ends: what ends first may still be counted and recorded.
#[derive(Clone, Copy)]
pub enum Kind {
    /// What is known of the thread as one of Python's.
    Python,
    /// Its counts of calls.
    Slot,
    /// What it writes to the record with.
    Writer,
}

const KINDS: usize = 3;

/// A component's state for one thread at a time.
///
/// # Safety
/// No other type has the same `KIND`.
pub unsafe trait Part: Sync + Sized + 'static {
    const KIND: Kind;

    /// The thread ends. Another may take the part over afterwards.
    fn thread_ends(&'static self);
}

/// What is kept of one thread at a time. All zeros is a free one.
#[repr(C, align(64))]
pub struct Record {
    /// The frame of the thread's call that the driver is in, 0 for none. As `passes`, written by the
    /// assembler of the driver's gate, where there is one.
    flight: AtomicUsize,
    /// Calls of the thread that may have given the GPU work.
    passes: AtomicU64,
    is_taken: AtomicBool,
    /// The kernel's number for the thread.
    number: AtomicI32,
    /// The parts that the thread uses, by [`Kind`].
    active: [AtomicPtr<c_void>; KINDS],
    /// The parts that there are, also of threads that have ended.
    parts: [AtomicPtr<c_void>; KINDS],
    next: Published<Self>,
}

// SAFETY: each of its words is an integer or a reference that is none where it is zeros.
unsafe impl Zeroed for Record {}

lifecycle::global! {
    stage: Last;

    /// All records, newest first.
    #[fork(by = in_child)]
    static ALL: Published<Record> = Published::none();
}
const NO_KEY: u32 = u32::MAX;
lifecycle::global! {
    /// Tells when a thread ends that has a record.
    #[fork(keep = "keys are inherited")]
    static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
    /// What tells each kind of part that its thread ends; none before there is one.
    #[fork(keep = "functions of this library")]
    static THREAD_ENDS: [Published<fn(&Record)>; KINDS] =
        [const { Published::none() }; KINDS];
}
/// Records that are made at a time: a page of them.
const BATCH: usize = 4096 / size_of::<Record>();

impl Record {
    /// Where the gate's assembler finds its words, in bytes.
    pub const FLIGHT: usize = offset_of!(Self, flight);
    pub const PASSES: usize = offset_of!(Self, passes);

    /// The kernel's number for the thread that has the record.
    pub fn number(&self) -> i32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The frame of the thread's call that the driver is in; 0 for none.
    pub fn flight(&self) -> usize {
        self.flight.load(Ordering::SeqCst)
    }

    /// Says which call the driver is in.
    pub fn set_flight(&self, frame: usize) {
        self.flight.store(frame, Ordering::SeqCst);
    }

    /// Calls of the thread that may have given the GPU work.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Counts one; only the thread itself may.
    pub fn add_passes(&self, more: u64) {
        self.passes.store(self.passes() + more, Ordering::Relaxed);
    }

    #[inline]
    fn part_in<P: Part>(&self, places: &[AtomicPtr<c_void>; KINDS]) -> Option<&'static P> {
        // SAFETY: null, or a part of this kind, whose type no other has, and which is never freed.
        unsafe {
            places[P::KIND as usize]
                .load(Ordering::Acquire)
                .cast::<P>()
                .as_ref()
        }
    }
}

/// The calling thread's record, if it has one.
#[inline]
pub fn current() -> Option<&'static Record> {
    Block::with(|block| block.record.get())
}

/// The calling thread's part, if it has one.
#[inline]
pub fn part<P: Part>() -> Option<&'static P> {
    let record = current()?;
    record.part_in::<P>(&record.active)
}

/// Gives the calling thread a part: what `make` makes of the one that another thread has left, if
/// any. None if that makes none, or if there is no memory.
pub fn begin_part<P: Part>(
    make: impl FnOnce(&'static Record, Option<&'static P>) -> Option<&'static P>,
) -> Option<&'static P> {
    struct Ends<P>(P);
    impl<P: Part> Ends<P> {
        const THREAD: fn(&Record) = |record| {
            if let Some(part) = record.part_in::<P>(&record.active) {
                part.thread_ends();
                record.active[P::KIND as usize].store(null_mut(), Ordering::Release);
            }
        };
    }
    let record = current().or_else(take)?;
    let part = make(record, record.part_in::<P>(&record.parts))?;
    let kind = P::KIND as usize;
    THREAD_ENDS[kind].set(Some(&Ends::<P>::THREAD));
    let place = from_ref(part).cast_mut().cast();
    record.parts[kind].store(place, Ordering::Release);
    record.active[kind].store(place, Ordering::Release);
    Some(part)
}

/// The calling thread uses its part no more, until the next [`begin_part`].
pub fn leave_part<P: Part>() {
    if let Some(record) = current() {
        record.active[P::KIND as usize].store(null_mut(), Ordering::Relaxed);
    }
}

/// The parts of this kind of all threads that there have been.
pub fn parts<P: Part>() -> impl Iterator<Item = &'static P> {
    records().filter_map(|record| record.part_in::<P>(&record.parts))
}

/// Forgets the parts of this kind, of all threads.
pub fn forget_parts<P: Part>() {
    for record in records() {
        record.active[P::KIND as usize].store(null_mut(), Ordering::Relaxed);
        record.parts[P::KIND as usize].store(null_mut(), Ordering::Relaxed);
    }
}

/// The records of all threads that there have been.
pub fn records() -> impl Iterator<Item = &'static Record> {
    core::iter::successors(ALL.get(), |record| record.next.get())
}

#[cold]
fn take() -> Option<&'static Record> {
    let free = |record: &&Record| {
        !record.is_taken.load(Ordering::Relaxed) && !record.is_taken.swap(true, Ordering::Acquire)
    };
    let record = records().find(free).or_else(more)?;
    record.number.store(ids::thread(), Ordering::Relaxed);
    Block::with(|block| block.record.set(Some(record)));
    if let Some(key) = key() {
        // SAFETY: the key has been made, and nobody reads what its value, which says no more than that
        // there is a record, leads to.
        unsafe { libc::pthread_setspecific(key, from_ref(record).cast()) };
    }
    Some(record)
}

/// Makes a batch of records, of which the first is taken.
fn more() -> Option<&'static Record> {
    let batch: &'static [Record] = pages::batch(BATCH)?;
    for (index, record) in batch.iter().enumerate().rev() {
        record.is_taken.store(index == 0, Ordering::Relaxed);
        let mut head = ALL.get();
        loop {
            record.next.set(head);
            match ALL.replace(head, Some(record)) {
                Ok(()) => break,
                Err(now) => head = now,
            }
        }
    }
    batch.first()
}

/// The key whose destructor says that a thread ends, made at the first call. Without one the records
/// of threads that end are not used again.
fn key() -> Option<u32> {
    extern "C" fn ends(_: *mut c_void) {
        if let Some(record) = current() {
            thread_ends(record);
        }
    }
    lifecycle::global! {
        #[fork(keep = "as the key")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if !ONCE.load(Ordering::Relaxed) && !ONCE.swap(true, Ordering::AcqRel) {
        let mut key = 0;
        // SAFETY: writes the key to the local; the handler is a function of this library, which is
        // never unloaded.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } == 0 {
            KEY.store(key, Ordering::Release);
        }
    }
    let key = KEY.load(Ordering::Acquire);
    (key != NO_KEY).then_some(key)
}

fn thread_ends(record: &'static Record) {
    for ends in THREAD_ENDS.iter().filter_map(Published::get) {
        ends(record);
    }
    record.set_flight(0);
    Block::with(|block| block.record.set(None));
    record.is_taken.store(false, Ordering::Release);
}

/// The child has one thread, which keeps its record and is in none of the driver's functions.
fn in_child(_: &OnlyThread) {
    let us = current();
    for record in records() {
        record.set_flight(0);
        if us.is_some_and(|us| core::ptr::eq(us, record)) {
            record.number.store(ids::thread(), Ordering::Relaxed);
            continue;
        }
        for active in &record.active {
            active.store(null_mut(), Ordering::Relaxed);
        }
        record.is_taken.store(false, Ordering::Relaxed);
    }
}

/// A number that no other living thread has: where the calling thread's block lies.
#[inline]
pub fn address() -> usize {
    arch::block().addr()
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
    // SAFETY: the caller promises that the block is still there and that its thread does not read
    // these words now.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::{scope, spawn};

    use super::*;

    /// Threads of other tests may take a record meanwhile: one test at a time.
    static ONE: Mutex<()> = Mutex::new(());
    /// The kinds of parts whose threads have ended, in order.
    static ENDED: Mutex<Vec<&str>> = Mutex::new(Vec::new());

    struct Python;
    struct Slot;
    struct Writer(AtomicU32);

    // SAFETY: no other part of this program is of this kind.
    unsafe impl Part for Python {
        const KIND: Kind = Kind::Python;
        fn thread_ends(&'static self) {
            ENDED.lock().unwrap().push("Python");
        }
    }
    // SAFETY: no other part of this program is of this kind.
    unsafe impl Part for Slot {
        const KIND: Kind = Kind::Slot;
        fn thread_ends(&'static self) {
            assert!(
                part::<Self>().is_some(),
                "it is the thread's until it has ended"
            );
            ENDED.lock().unwrap().push("Slot");
        }
    }
    // SAFETY: no other part of this program is of this kind.
    unsafe impl Part for Writer {
        const KIND: Kind = Kind::Writer;
        fn thread_ends(&'static self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            ENDED.lock().unwrap().push("Writer");
        }
    }

    fn writer() -> &'static Writer {
        begin_part(|_, left| left.or_else(|| Some(Box::leak(Box::new(Writer(0.into())))))).unwrap()
    }

    #[test]
    fn the_next_thread_takes_the_record_over_with_its_parts() {
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        let here = || {
            (
                from_ref(current().unwrap()).addr(),
                from_ref(writer()).addr(),
            )
        };
        let first = spawn(move || {
            assert!(current().is_none() && part::<Writer>().is_none());
            writer();
            assert!(part::<Writer>().is_some());
            here()
        });
        let first = first.join().unwrap();
        let second = spawn(move || {
            let writer = writer();
            assert_eq!(current().unwrap().number(), ids::thread());
            assert!(
                writer.0.load(Ordering::Relaxed) >= 1,
                "its last thread has ended"
            );
            here()
        });
        assert_eq!(second.join().unwrap(), first);
        assert!(parts::<Writer>().any(|writer| from_ref(writer).addr() == first.1));
    }

    #[test]
    fn parts_end_in_the_order_of_their_kinds() {
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        ENDED.lock().unwrap().clear();
        let thread = spawn(|| {
            writer();
            begin_part(|_, _| Some(&Slot)).unwrap();
            begin_part(|_, _| Some(&Python)).unwrap();
        });
        thread.join().unwrap();
        assert_eq!(*ENDED.lock().unwrap(), ["Python", "Slot", "Writer"]);
        let thread = spawn(|| {
            writer();
            begin_part(|_, _| Some(&Slot)).unwrap();
            leave_part::<Slot>();
        });
        thread.join().unwrap();
        let ended = ENDED.lock().unwrap();
        assert_eq!(ended[3..], ["Writer"], "what was left does not end");
    }

    #[test]
    fn two_threads_never_have_the_same_record() {
        const THREADS: usize = 3 * BATCH;
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        let at_once = || {
            let barrier = std::sync::Barrier::new(THREADS);
            let mut taken: Vec<usize> = scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| {
                        scope.spawn(|| {
                            writer();
                            barrier.wait();
                            from_ref(current().unwrap()).addr()
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            taken.sort_unstable();
            taken
        };
        let taken = at_once();
        assert!(taken.windows(2).all(|pair| pair[0] != pair[1]));
        let count = records().count();
        let again = at_once();
        assert!(again.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(
            records().count(),
            count,
            "records of ended threads are used again"
        );
    }

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
}
