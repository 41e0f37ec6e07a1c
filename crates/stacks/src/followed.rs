//! The threads that have made steps in the window that is open.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use tllmprof_platform::ids;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::thread;
use tllmprof_python::stacks::{Target, here};

/// Threads that are followed at most.
pub const MOST: usize = 8;

/// A thread is about to be followed.
const TAKEN: i32 = -1;

struct Place {
    /// The kernel's number for the thread; 0 for none.
    number: AtomicI32,
    /// The thread as one of Python's; 0 where it is none.
    state: AtomicUsize,
    id: AtomicUsize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static PLACES: [Place; MOST] = [const {
        Place {
            number: AtomicI32::new(0),
            state: AtomicUsize::new(0),
            id: AtomicUsize::new(0),
        }
    }; MOST];
}

/// The calling thread makes a step. Without room it is not followed.
pub fn follow() {
    let number = thread::current().map_or_else(ids::thread, thread::Record::number);
    let ours = |place: &&Place| place.number.load(Ordering::Relaxed) == number;
    let free = |place: &&Place| {
        let taken = place
            .number
            .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    if let Some(place) = PLACES
        .iter()
        .find(ours)
        .or_else(|| PLACES.iter().find(free))
    {
        // It may be another than at its last step: programs make states for a call.
        let (state, id) = here().map_or((0, 0), |target| (target.state, target.id));
        place.id.store(id, Ordering::Relaxed);
        place.state.store(state, Ordering::Release);
        place.number.store(number, Ordering::Release);
    }
}

/// A thread that is followed.
#[derive(Clone, Copy)]
pub struct Followed {
    pub place: usize,
    pub number: i32,
    pub target: Option<Target>,
}

/// All of them.
pub fn all() -> impl Iterator<Item = Followed> {
    PLACES.iter().enumerate().filter_map(|(index, place)| {
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

/// The thread has ended.
pub fn forget(thread: Followed) {
    let number = &PLACES[thread.place].number;
    let _ = number.compare_exchange(thread.number, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// The window has closed.
pub fn forget_all() {
    for place in &PLACES {
        place.number.store(0, Ordering::Release);
    }
}

fn in_child(_: &OnlyThread) {
    forget_all();
}
