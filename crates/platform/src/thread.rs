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

use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use self::arch::block;
use crate::ids;
use crate::lifecycle::{self, OnlyThread};

/// The calling thread's own words, in initial-exec thread-local storage. All zeros in a new thread.
/// 64 bytes, so that a process that loads many libraries still finds room in the static TLS area.
#[repr(C)]
pub struct Block {
    /// The thread's cells, null before its first call.
    cells: *const c_void,
    /// Where the outermost intercepted call's return address lies on the stack, 0 for none.
    outer: usize,
    /// What that return address is.
    outer_return: usize,
    /// What is kept of the thread, null before its first event.
    record: *const Record,
    /// Where the thread's calls are noted; null for nowhere, as while it captures a stream.
    trail: *const c_void,
    /// 1 while the thread is in the library's own code.
    inside: usize,
    reserved: [usize; 2],
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
    next: AtomicPtr<Self>,
}

lifecycle::global! {
    stage: Last;

    /// All records, newest first.
    #[fork(by = in_child)]
    static ALL: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
}
const NO_KEY: u32 = u32::MAX;
lifecycle::global! {
    /// Tells when a thread ends that has a record.
    #[fork(keep = "keys are inherited")]
    static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
    /// What tells each kind of part that its thread ends; null before there is one.
    #[fork(keep = "functions of this library")]
    static THREAD_ENDS: [AtomicPtr<c_void>; KINDS] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; KINDS];
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
        // SAFETY: null, or a part of this kind that is never freed.
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
    // SAFETY: the block is the thread's own; records are never freed.
    unsafe { (*block()).record.as_ref() }
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
    fn thread_ends<P: Part>(record: &Record) {
        let active = &record.active[P::KIND as usize];
        if let Some(part) = record.part_in::<P>(&record.active) {
            part.thread_ends();
            active.store(core::ptr::null_mut(), Ordering::Release);
        }
    }
    let record = current().or_else(take)?;
    let part = make(record, record.part_in::<P>(&record.parts))?;
    let kind = P::KIND as usize;
    THREAD_ENDS[kind].store(
        thread_ends::<P> as fn(&Record) as *mut c_void,
        Ordering::Release,
    );
    let place = core::ptr::from_ref(part).cast_mut().cast();
    record.parts[kind].store(place, Ordering::Release);
    record.active[kind].store(place, Ordering::Release);
    Some(part)
}

/// The calling thread uses its part no more, until the next [`begin_part`].
pub fn leave_part<P: Part>() {
    if let Some(record) = current() {
        record.active[P::KIND as usize].store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The parts of this kind of all threads that there have been.
pub fn parts<P: Part>() -> impl Iterator<Item = &'static P> {
    records().filter_map(|record| record.part_in::<P>(&record.parts))
}

/// Forgets the parts of this kind, of all threads.
pub fn forget_parts<P: Part>() {
    for record in records() {
        record.active[P::KIND as usize].store(core::ptr::null_mut(), Ordering::Relaxed);
        record.parts[P::KIND as usize].store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The records of all threads that there have been.
pub fn records() -> impl Iterator<Item = &'static Record> {
    let at = |place: &AtomicPtr<Record>| {
        // SAFETY: null or a record, which is never freed.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    };
    core::iter::successors(at(&ALL), move |record| at(&record.next))
}

#[cold]
fn take() -> Option<&'static Record> {
    let free = |record: &&Record| {
        !record.is_taken.load(Ordering::Relaxed) && !record.is_taken.swap(true, Ordering::Acquire)
    };
    let record = records().find(free).or_else(more)?;
    record.number.store(ids::thread(), Ordering::Relaxed);
    // SAFETY: the block is the thread's own.
    unsafe { (*block()).record = record };
    if let Some(key) = key() {
        // SAFETY: the key has been made; its value is a record, which is never freed.
        unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(record).cast()) };
    }
    Some(record)
}

/// Makes a batch of records, of which the first is taken.
fn more() -> Option<&'static Record> {
    // SAFETY: an anonymous mapping, which is never unmapped.
    let pages = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            BATCH * size_of::<Record>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if pages == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping has room for that many, is aligned to a page, is nobody else's, and zeros
    // are records.
    let batch: &'static [Record] =
        unsafe { core::slice::from_raw_parts(pages.cast::<Record>(), BATCH) };
    for (index, record) in batch.iter().enumerate().rev() {
        record.is_taken.store(index == 0, Ordering::Relaxed);
        let us = core::ptr::from_ref(record).cast_mut();
        let mut head = ALL.load(Ordering::Acquire);
        loop {
            record.next.store(head, Ordering::Relaxed);
            match ALL.compare_exchange(head, us, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }
    batch.first()
}

/// The key whose destructor says that a thread ends, made at the first call. Without one the records
/// of threads that end are not used again.
fn key() -> Option<u32> {
    unsafe extern "C" fn ends(record: *mut c_void) {
        // SAFETY: the value is a record, which is never freed.
        thread_ends(unsafe { &*record.cast::<Record>() });
    }
    lifecycle::global! {
        #[fork(keep = "as the key")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if !ONCE.load(Ordering::Relaxed) && !ONCE.swap(true, Ordering::AcqRel) {
        let mut key = 0;
        // SAFETY: the handler is a function of this library, which is never unloaded.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } == 0 {
            KEY.store(key, Ordering::Release);
        }
    }
    let key = KEY.load(Ordering::Acquire);
    (key != NO_KEY).then_some(key)
}

fn thread_ends(record: &'static Record) {
    for ends in &THREAD_ENDS {
        let ends = ends.load(Ordering::Acquire);
        if !ends.is_null() {
            // SAFETY: such a function was stored there.
            unsafe { core::mem::transmute::<*mut c_void, fn(&Record)>(ends)(record) };
        }
    }
    record.set_flight(0);
    // SAFETY: the block is the thread's own.
    unsafe { (*block()).record = core::ptr::null() };
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
            active.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        record.is_taken.store(false, Ordering::Relaxed);
    }
}

/// A number that no other living thread has: where the calling thread's block lies.
#[inline]
pub fn address() -> usize {
    block().addr()
}

/// Where the calling thread counts its calls; null for nowhere.
#[inline]
pub fn cells() -> *const c_void {
    // SAFETY: the block is the thread's own.
    unsafe { (*block()).cells }
}

/// Says where the calling thread counts its calls and where it notes them. Returns what
/// [`set_counting_of`] takes.
pub fn set_counting(cells: *const c_void, trail: *const c_void) -> usize {
    let block = block();
    // SAFETY: the block is the thread's own.
    unsafe {
        (*block).cells = cells;
        (*block).trail = trail;
    }
    block.expose_provenance()
}

/// As [`set_counting`], for another thread.
///
/// # Safety
/// `thread` came from [`set_counting`] on a thread that is still alive and does not read the words
/// meanwhile.
pub unsafe fn set_counting_of(thread: usize, cells: *const c_void, trail: *const c_void) {
    let block = core::ptr::with_exposed_provenance_mut::<Block>(thread);
    // SAFETY: the caller's promise.
    unsafe {
        (&raw mut (*block).cells).write_volatile(cells);
        (&raw mut (*block).trail).write_volatile(trail);
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
    // SAFETY: the block is the thread's own.
    unsafe {
        let block = block();
        Outer {
            place: (*block).outer,
            return_address: (*block).outer_return,
        }
    }
}

/// Says which call of the calling thread is the outermost. The place must be readable until another
/// is said.
pub fn set_outer(outer: Outer) {
    // SAFETY: the block is the thread's own.
    unsafe {
        let block = block();
        (*block).outer_return = outer.return_address;
        (*block).outer = outer.place;
    }
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
    let mark = core::hint::black_box(&raw const mark);
    let before = outer();
    // SAFETY: the block is the calling thread's own; the mark lies in this frame until the old one
    // is back.
    unsafe {
        let block = block();
        let trail = (*block).trail;
        set_outer(Outer {
            place: mark.addr(),
            return_address: *mark,
        });
        (*block).trail = core::ptr::null();
        act();
        (*block).trail = trail;
    }
    set_outer(before);
}

/// The thread is in the library's own code: a function that is named may be one that this uses, such
/// as an allocator's, or the call of a signal handler.
pub struct Inside(());

impl Inside {
    /// Enters; none where the thread is inside already.
    pub fn enter() -> Option<Self> {
        // SAFETY: the block is the calling thread's own.
        let inside = unsafe { &mut (*block()).inside };
        if *inside != 0 {
            return None;
        }
        *inside = 1;
        Some(Self(()))
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
        // SAFETY: the block is the calling thread's own.
        unsafe { (*block()).inside = 0 };
    }
}
