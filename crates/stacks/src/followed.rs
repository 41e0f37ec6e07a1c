//! The threads that have made steps in the open window.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use tllmprof_platform::ids;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::thread;
use tllmprof_python::stacks::{Target, here};

/// Largest number of threads that are followed.
pub const MAX_THREADS: usize = 8;

/// Value of a slot's number while a thread claims the slot.
const CLAIMED: i32 = -1;

struct ThreadSlot {
    /// The kernel's number for the thread; 0 for none.
    number: AtomicI32,
    /// The Python state of the thread; 0 if it has none.
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

/// Follows the calling thread, which makes a step. If all slots are in use, it is not followed.
pub fn follow() {
    let number = thread::current().map_or_else(ids::thread, thread::ThreadRecord::number);
    let ours = |place: &&ThreadSlot| place.number.load(Ordering::Relaxed) == number;
    let free = |place: &&ThreadSlot| {
        let taken = place
            .number
            .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    if let Some(place) = SLOTS.iter().find(ours).or_else(|| SLOTS.iter().find(free)) {
        // The state may have changed since the last step: programs make states for one call.
        let (state, id) = here().map_or((0, 0), |target| (target.state, target.id));
        place.id.store(id, Ordering::Relaxed);
        place.state.store(state, Ordering::Release);
        place.number.store(number, Ordering::Release);
    }
}

/// A followed thread.
#[derive(Clone, Copy)]
pub struct Followed {
    pub place: usize,
    pub number: i32,
    pub target: Option<Target>,
}

/// Returns all followed threads.
pub fn all() -> impl Iterator<Item = Followed> {
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

/// Forgets a thread that has ended.
pub fn forget(thread: Followed) {
    let number = &SLOTS[thread.place].number;
    let _ = number.compare_exchange(thread.number, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// Forgets all threads, when the window has closed.
pub fn forget_all() {
    for place in &SLOTS {
        place.number.store(0, Ordering::Release);
    }
}

fn in_child(_: &OnlyThread) {
    forget_all();
}
