//! The state that the library keeps for each thread.
//!
//! A thread has a [`Block`], the few thread-local words that the library's assembly code reads. When a component of the
//! library first keeps state for the thread, the thread also gets a [`ThreadRecord`]. The record has one part for each
//! component ([`Part`]). All components share one thread key and one list of records. Records are never freed. A new
//! thread takes over the record of an ended thread, with its parts. So ten thousand short threads need only
//! about as many records as there were threads at the same time.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr::{from_ref, null, null_mut};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::block;
pub use crate::block::{
    Block, Inside, LookingUp, Outer, address, cells, leave_outer, outer, set_counting,
    set_counting_of, set_outer, uncounted,
};
use crate::ids;
use crate::lifecycle::{self, OnlyThread};
use crate::pages::{self, Zeroed};
use crate::panics::contained;
use crate::{function, resolve};
use tllmprof_sync::Published;

/// The components of the library that keep state for each thread, in the order in which they are notified of
/// a thread's end. An earlier component may still use the later ones at that time.
#[derive(Clone, Copy)]
pub enum ThreadComponent {
    /// The thread's state for Python: its use of the GIL and its calls of marked functions.
    Python,
    /// The thread's slot: the counters for the thread's calls.
    Slot,
    /// The thread's open scopes (torch modules, NVTX ranges and marked functions), to which GPU work is
    /// attributed.
    Scopes,
    /// The thread's writer, through which it writes events into the record file.
    Writer,
}

const KINDS: usize = 4;

/// A component's state for one thread at a time.
///
/// # Safety
/// No other type has the same `KIND`.
pub unsafe trait Part: Sync + Sized + 'static {
    const KIND: ThreadComponent;

    /// Called when the thread ends. From then on another thread may take over this part of the thread's state.
    fn thread_ends(&'static self);
}

/// The library's state for one thread at a time. A record that no thread has used yet consists of zeros.
#[repr(C, align(64))]
pub struct ThreadRecord {
    /// The stack address of the frame of the thread's call that is now in the driver; 0 if no call is. The assembly
    /// code of the gates (the stubs through which calls reach the driver) writes this field and `passes`.
    flight: AtomicUsize,
    /// The number of the thread's calls that may have enqueued work on the GPU.
    passes: AtomicU64,
    is_taken: AtomicBool,
    /// The kernel's ID of the thread that uses this record.
    number: AtomicI32,
    /// The stack address of a return address, at which a check has found that the thread runs on its normal stack and
    /// not on a signal handler's stack; 0 if there was no such check. A call at the same stack address is not checked
    /// again.
    own_stack: AtomicUsize,
    /// The parts that the thread uses now, indexed by [`ThreadComponent`]. The thread's block also has a
    /// pointer to the writer.
    active: [AtomicPtr<c_void>; KINDS],
    /// All parts that belong to the record, including those that an ended thread has left, indexed
    /// by [`ThreadComponent`].
    parts: [AtomicPtr<c_void>; KINDS],
    next: Published<Self>,
}

// SAFETY: each field is an integer or a pointer, for which zeros are valid: a null pointer means none.
unsafe impl Zeroed for ThreadRecord {}

lifecycle::global! {
    stage: Last;

    /// A linked list of the records (the library's state) of all threads, the newest first.
    #[fork(by = in_child)]
    static ALL: Published<ThreadRecord> = Published::none();
}
const NO_KEY: u32 = u32::MAX;
/// Types of functions in pthread.h. The library calls the C library's own versions of these functions, because another
/// library that replaces them may not be initialised yet.
type KeyCreate = unsafe extern "C" fn(*mut u32, Option<unsafe extern "C" fn(*mut c_void)>) -> c_int;
type SetSpecific = unsafe extern "C" fn(u32, *const c_void) -> c_int;
lifecycle::global! {
    /// The thread key whose destructor runs when a thread with a [`ThreadRecord`] ends.
    #[fork(keep = "keys are inherited")]
    static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
    /// The address of the C library's `pthread_setspecific`; null until the thread key is being created.
    #[fork(keep = "the C library stays where it is")]
    static SET_SPECIFIC: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    /// The function to call when the main thread ends while the process continues.
    #[fork(keep = "a function of this library")]
    static MAIN_THREAD_LEAVES: Published<fn()> = Published::none();
    /// For each component, the function that calls [`Part::thread_ends`] of the component's part. `None` before the
    /// first part of that component.
    #[fork(keep = "functions of this library")]
    static THREAD_ENDS: [Published<fn(&ThreadRecord)>; KINDS] =
        [const { Published::none() }; KINDS];
}
/// Number of [`ThreadRecord`]s that are allocated together: as many as fit on a page.
const BATCH: usize = 4096 / size_of::<ThreadRecord>();

impl ThreadRecord {
    /// Offset in bytes of the field `flight`; [`Self::PASSES`] is that of `passes`. The assembly code of the gates
    /// (the stubs through which calls reach the driver) uses these two fields.
    pub const FLIGHT: usize = offset_of!(Self, flight);
    pub const PASSES: usize = offset_of!(Self, passes);

    /// Returns the kernel's ID of the thread that uses the record.
    pub fn number(&self) -> i32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns the frame address of the thread's call that is in progress in the driver; 0 if there is none.
    pub fn flight(&self) -> usize {
        self.flight.load(Ordering::SeqCst)
    }

    /// Sets the frame address of the thread's call that is in progress in the driver; 0 means that no call is.
    pub fn set_flight(&self, frame: usize) {
        self.flight.store(frame, Ordering::SeqCst);
    }

    /// Returns the number of the thread's calls that may have enqueued work on the GPU.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Returns true if the last call of [`set_on_own_stack`](Self::set_on_own_stack) had this `place`. Then a call
    /// whose return address is at `place` runs on the thread's normal stack.
    pub fn is_on_own_stack(&self, place: usize) -> bool {
        self.own_stack.load(Ordering::Relaxed) == place
    }

    /// Stores that a call whose return address is at the stack address `place` does not run on a signal handler's
    /// stack.
    pub fn set_on_own_stack(&self, place: usize) {
        self.own_stack.store(place, Ordering::Relaxed);
    }

    /// Adds to the number that [`passes`](Self::passes) returns. Only the thread itself may call this.
    pub fn add_passes(&self, more: u64) {
        self.passes.store(self.passes() + more, Ordering::Relaxed);
    }

    #[inline]
    fn part_in<P: Part>(&self, places: &[AtomicPtr<c_void>; KINDS]) -> Option<&'static P> {
        // SAFETY: the pointer is null, or points to a part of this kind. No other type has this kind, and parts are
        // never freed.
        unsafe {
            places[P::KIND as usize]
                .load(Ordering::Acquire)
                .cast::<P>()
                .as_ref()
        }
    }
}

/// Returns the calling thread's record (the library's state for the thread), if it has one.
#[inline]
pub fn current() -> Option<&'static ThreadRecord> {
    // SAFETY: the word is null, or `take` has stored the address of a record there, and records are never freed.
    unsafe { block::record().cast::<ThreadRecord>().as_ref() }
}

/// Returns the calling thread's part of type `P` (a component's state for the thread), if it has one.
#[inline]
pub fn part<P: Part>() -> Option<&'static P> {
    if matches!(P::KIND, ThreadComponent::Writer) {
        // SAFETY: the word is null, or `set_active` has stored the address of a part of this kind there. No other type
        // has this kind, and parts are never freed.
        return unsafe { block::writer().cast::<P>().as_ref() };
    }
    let record = current()?;
    record.part_in::<P>(&record.active)
}

/// Sets the calling thread's part of type `P`; null means none. `record` is the thread's record.
fn set_active<P: Part>(record: &ThreadRecord, part: *mut c_void) {
    record.active[P::KIND as usize].store(part, Ordering::Release);
    if matches!(P::KIND, ThreadComponent::Writer) {
        block::set_writer(part);
    }
}

/// Gives the calling thread a part of type `P` (a component's state for the thread), which `make` returns. `make` gets
/// the thread's record and the part of type `P` that this or an earlier thread left in the record, if there is one.
/// Returns `None` if `make` returns `None`, or if there is no memory.
pub fn begin_part<P: Part>(
    make: impl FnOnce(&'static ThreadRecord, Option<&'static P>) -> Option<&'static P>,
) -> Option<&'static P> {
    struct Ends<P>(P);
    impl<P: Part> Ends<P> {
        const THREAD: fn(&ThreadRecord) = |record| {
            if let Some(part) = record.part_in::<P>(&record.active) {
                part.thread_ends();
                set_active::<P>(record, null_mut());
            }
        };
    }
    let record = current().or_else(take)?;
    let part = make(record, record.part_in::<P>(&record.parts))?;
    let kind = P::KIND as usize;
    THREAD_ENDS[kind].set(Some(&Ends::<P>::THREAD));
    let place = from_ref(part).cast_mut().cast();
    record.parts[kind].store(place, Ordering::Release);
    set_active::<P>(record, place);
    Some(part)
}

/// Makes the calling thread stop using its part of type `P` (a component's state for the thread), until the next
/// [`begin_part`].
pub fn leave_part<P: Part>() {
    if let Some(record) = current() {
        set_active::<P>(record, null_mut());
    }
}

/// Returns the parts of type `P` (a component's state for a thread) of all threads, including ended threads.
pub fn parts<P: Part>() -> impl Iterator<Item = &'static P> {
    records().filter_map(|record| record.part_in::<P>(&record.parts))
}

/// Forgets the parts of type `P` (a component's state for a thread) of all threads. Not allowed for writers, because
/// the address of a writer is also in the thread's block, which other threads never change.
pub fn forget_parts<P: Part>() {
    const { assert!(!matches!(P::KIND, ThreadComponent::Writer)) };
    for record in records() {
        record.active[P::KIND as usize].store(null_mut(), Ordering::Relaxed);
        record.parts[P::KIND as usize].store(null_mut(), Ordering::Relaxed);
    }
}

/// Returns the records (the library's state) of all threads, including ended threads.
pub fn records() -> impl Iterator<Item = &'static ThreadRecord> {
    core::iter::successors(ALL.get(), |record| record.next.get())
}

#[cold]
fn take() -> Option<&'static ThreadRecord> {
    let free = |record: &&ThreadRecord| {
        !record.is_taken.load(Ordering::Relaxed) && !record.is_taken.swap(true, Ordering::Acquire)
    };
    let record = records().find(free).or_else(more)?;
    record.number.store(ids::thread(), Ordering::Relaxed);
    record.set_on_own_stack(0);
    block::set_record(from_ref(record).cast());
    set_key(from_ref(record).cast());
    Some(record)
}

/// Registers `leaves`, which is called when the main thread ends while the process continues. This works only if the
/// main thread has made a call that the library intercepted, or has called [`watch_end`].
pub fn when_main_thread_leaves(leaves: &'static fn()) {
    MAIN_THREAD_LEAVES.set(Some(leaves));
}

/// Makes the library notice the end of the calling thread, even if the thread makes no call that the library
/// intercepts. Returns true on success.
pub fn watch_end() -> bool {
    let value = match current() {
        Some(record) => from_ref(record).cast::<c_void>(),
        None => from_ref(&KEY).cast(),
    };
    set_key(value)
}

/// Sets a value for the thread key, so that the key's destructor runs when the calling thread ends. Returns
/// true on success. The value is never read, but it must not be null.
fn set_key(value: *const c_void) -> bool {
    let Some(key) = key() else { return false };
    let found = SET_SPECIFIC.load(Ordering::Acquire);
    // SAFETY: the address is null or that of the C library's function of this name and type, and the key has been
    // created.
    unsafe { function::at::<SetSpecific>(found).is_some_and(|set| set(key, value) == 0) }
}

/// Allocates several [`ThreadRecord`]s, and reserves the first one for the caller.
fn more() -> Option<&'static ThreadRecord> {
    let batch: &'static [ThreadRecord] = pages::batch(BATCH)?;
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

/// Returns the thread key whose destructor reports the end of a thread. The first call creates the key. Returns `None`
/// if the key could not be created. Then the records of ended threads cannot be reused.
fn key() -> Option<u32> {
    extern "C" fn ends(_: *mut c_void) {
        contained((), || {
            if lifecycle::is_filtered() {
                return;
            }
            if let Some(record) = current() {
                thread_ends(record);
            }
            if let Some(leaves) = MAIN_THREAD_LEAVES.get()
                && ids::process() == ids::thread()
            {
                leaves();
            }
        });
    }
    lifecycle::global! {
        #[fork(keep = "as the key")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if !ONCE.load(Ordering::Relaxed) && !ONCE.swap(true, Ordering::AcqRel) {
        let mut key = 0;
        let found = |name| resolve::of_c_library(name).unwrap_or_default();
        SET_SPECIFIC.store(found(c"pthread_setspecific"), Ordering::Release);
        // SAFETY: the address is null or that of the C library's function of this name and type, which writes the key
        // to the local variable. The handler is a function of this library, which is never unloaded.
        let is_made = unsafe {
            function::at::<KeyCreate>(found(c"pthread_key_create"))
                .is_some_and(|create| create(&raw mut key, Some(ends)) == 0)
        };
        if is_made {
            KEY.store(key, Ordering::Release);
        }
    }
    let key = KEY.load(Ordering::Acquire);
    (key != NO_KEY).then_some(key)
}

fn thread_ends(record: &'static ThreadRecord) {
    for ends in THREAD_ENDS.iter().filter_map(Published::get) {
        contained((), || ends(record));
    }
    record.set_flight(0);
    block::set_record(null());
    record.is_taken.store(false, Ordering::Release);
}

/// Runs in the child of a fork. The forking thread keeps its record; the records of all other threads become free. All
/// records then state that no call is in the driver.
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

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;
    use std::thread::{scope, spawn};

    use super::*;

    /// A lock that lets only one test run at a time, because threads of other tests could take over a record.
    pub(crate) static ONE: Mutex<()> = Mutex::new(());
    /// The components whose parts were notified of the end of their thread, in the order of these
    /// notifications.
    static ENDED: Mutex<Vec<&str>> = Mutex::new(Vec::new());

    struct Python;
    struct Slot;
    pub(crate) struct Writer(AtomicU32);

    // SAFETY: no other part in this program has this kind.
    unsafe impl Part for Python {
        const KIND: ThreadComponent = ThreadComponent::Python;
        fn thread_ends(&'static self) {
            ENDED.lock().unwrap().push("Python");
        }
    }
    // SAFETY: no other part in this program has this kind.
    unsafe impl Part for Slot {
        const KIND: ThreadComponent = ThreadComponent::Slot;
        fn thread_ends(&'static self) {
            assert!(
                part::<Self>().is_some(),
                "it is the thread's until it has ended"
            );
            ENDED.lock().unwrap().push("Slot");
        }
    }
    // SAFETY: no other part in this program has this kind.
    unsafe impl Part for Writer {
        const KIND: ThreadComponent = ThreadComponent::Writer;
        fn thread_ends(&'static self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            ENDED.lock().unwrap().push("Writer");
        }
    }

    /// Gives the calling thread a writer part, and returns it.
    pub(crate) fn writer() -> &'static Writer {
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
}
