//! The threads whose stacks are sampled: those that have made steps, or launched work for steps, in the open window
//! (a recorded interval).

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use tllmprof_platform::ids;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::thread;
use tllmprof_python::stacks::{Target, here};

use super::files::{MAX_THREADS, TaskFiles, TaskId};

/// The value of [`ThreadSlot::number`] in an entry that a thread has claimed and not filled in yet.
const CLAIMED: i32 = -1;

struct ThreadSlot {
    /// The kernel's id of the thread; 0 if the slot is free.
    number: AtomicI32,
    /// The address of the thread's Python thread state; 0 if it has none.
    state: AtomicUsize,
    id: AtomicUsize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static SLOTS: [ThreadSlot; MAX_THREADS] = [const {
        ThreadSlot {
            number: AtomicI32::new(0),
            state: AtomicUsize::new(0),
            id: AtomicUsize::new(0),
        }
    }; MAX_THREADS];
}

/// Adds the calling thread to the threads whose stacks are sampled. Called when the thread begins an iteration or
/// launches work. Does nothing if all entries of the table of followed threads are in use.
pub(crate) fn follow() {
    let number = thread::current().map_or_else(ids::thread, thread::ThreadRecord::number);
    let ours = |place: &&ThreadSlot| place.number.load(Ordering::Relaxed) == number;
    let free = |place: &&ThreadSlot| {
        let taken = place
            .number
            .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    if let Some(place) = SLOTS.iter().find(ours).or_else(|| SLOTS.iter().find(free)) {
        // The Python thread state may have changed since the last step, because some programs create one for a single
        // call. So it is stored again.
        let (state, id) = here().map_or((0, 0), |target| (target.state, target.id));
        place.id.store(id, Ordering::Relaxed);
        place.state.store(state, Ordering::Release);
        place.number.store(number, Ordering::Release);
    }
}

/// A thread whose stacks are sampled. `place` is the index of its `/proc` files in the table of open files. For a
/// followed thread, `place` is also its index in the table of followed threads.
#[derive(Clone, Copy)]
pub(crate) struct Followed {
    pub place: usize,
    pub number: i32,
    pub target: Option<Target>,
}

impl Followed {
    /// Returns the thread's files in `/proc`.
    pub(crate) const fn files(self) -> TaskFiles {
        TaskFiles {
            place: self.place,
            id: TaskId::Thread(self.number),
        }
    }
}

/// Returns all threads whose stacks are sampled.
pub(crate) fn all() -> impl Iterator<Item = Followed> {
    SLOTS.iter().enumerate().filter_map(|(index, place)| {
        let number = place.number.load(Ordering::Acquire);
        let state = place.state.load(Ordering::Acquire);
        let id = place.id.load(Ordering::Relaxed);
        (number > 0).then_some(Followed {
            place: index,
            number,
            target: (state != 0).then_some(Target { state, id }),
        })
    })
}

/// Frees the entry of a followed thread in the table, because the thread has ended.
pub(crate) fn forget(thread: Followed) {
    let number = &SLOTS[thread.place].number;
    let _ = number.compare_exchange(thread.number, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// Frees all entries of the table of followed threads. Called when the window (a recorded interval) has closed.
pub(crate) fn forget_all() {
    for place in &SLOTS {
        place.number.store(0, Ordering::Release);
    }
}

fn in_child(_: &OnlyThread) {
    forget_all();
}
