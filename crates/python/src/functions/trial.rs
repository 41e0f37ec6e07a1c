//! Makes test calls of Python functions to check that interpreter frames have the expected layout,
//! before any function of the program is marked.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use super::frames::Layout;
use super::marked;
use crate::object::{Object, Python};
use crate::spans::{CallReceiver, Entered, Mark, Watch};
use crate::trouble::Trouble;
use tllmprof_platform::lifecycle;

const SOURCE: &core::ffi::CStr = c"
token = object()

def call(first, second=2):
    return first

def closed(first, *more):
    return lambda: first

def steps(first):
    yield lambda: first
    yield 2

codes = tuple(function.__code__ for function in (call, closed, steps))

def run():
    call(token)
    closed(token, 2)
    for _ in steps(token):
        pass
    left = steps(token)
    next(left)
    left.close()
    steps(token).close()
";

/// The events that a call of [`SOURCE`]'s `run` causes if the layout is right. Each line is for one call that `run`
/// makes, or for one generator.
const WANTED: &[SeenEvent] = {
    use SeenEvent::{Begins, Ends, GoesOn, Yields};
    &[
        Begins, Ends, // the call of the Python function `call`
        Begins, Ends, // the call of the Python function `closed`, whose argument is a cell
        Begins, Yields, GoesOn, Yields, GoesOn, Ends, // the generator in `run`'s loop
        // The generator `left`, which `run` closes after one value. The generator that `run` creates last causes no
        // events, because it is closed before it starts.
        Begins, Yields, GoesOn, Ends,
    ]
};

#[derive(Clone, Copy)]
#[repr(u8)]
enum SeenEvent {
    Begins = 1,
    GoesOn,
    Yields,
    Ends,
    /// A call of a test function began, but the argument that was read is not the one that was
    /// passed.
    Wrong,
}

/// A receiver that records the events of the test calls.
struct Trial {
    token: AtomicUsize,
    next: AtomicUsize,
    seen: [AtomicU8; 32],
}

lifecycle::global! {
    #[fork(keep = "cleared where a trial begins")]
    #[restart(keep)]
    static TRIAL: Trial = Trial::new();
}

impl Trial {
    const fn new() -> Self {
        Self {
            token: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            seen: [const { AtomicU8::new(0) }; 32],
        }
    }

    /// Returns true if the recorded events are exactly `wanted`, in this order.
    fn has_seen(&self, wanted: &[SeenEvent]) -> bool {
        self.next.load(Ordering::Relaxed) == wanted.len()
            && wanted
                .iter()
                .zip(&self.seen)
                .all(|(&wanted, seen)| wanted as u8 == seen.load(Ordering::Relaxed))
    }

    /// Returns the event for the beginning of a test call. `first` is the address of the call's
    /// first argument, as read from the frame.
    fn beginning(&self, first: usize, goes_on: bool) -> SeenEvent {
        match goes_on {
            true => SeenEvent::GoesOn,
            false if first == self.token.load(Ordering::Relaxed) => SeenEvent::Begins,
            false => SeenEvent::Wrong,
        }
    }

    fn note(&self, seen: SeenEvent) {
        if let Some(place) = self.seen.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            place.store(seen as u8, Ordering::Relaxed);
        }
    }
}

impl CallReceiver for Trial {
    fn enters(&self, _: Python<'_>, first: Option<&Object<'_>>, goes_on: bool) -> Entered {
        let first = first.map_or(0, Object::addr);
        self.note(self.beginning(first, goes_on));
        Entered::with(None)
    }

    fn leaves(&self, _: Python<'_>, _: Entered, has_ended: bool) {
        self.note(if has_ended {
            SeenEvent::Ends
        } else {
            SeenEvent::Yields
        });
    }
}

const UNKNOWN: u32 = 0;
const GOOD: u32 = 1;
const BAD: u32 = 2;
lifecycle::global! {
    /// The result of the test calls: unknown, passed or failed. Reset when another CPython is
    /// started in the process.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static VERDICT: AtomicU32 = AtomicU32::new(UNKNOWN);
}

/// Runs the test calls, unless they have run before or our evaluator is not installed (`is_there` is
/// false). Returns `None` if the test calls have shown that frames do not have the expected layout.
pub(crate) fn passes(py: Python<'_>, _: &Layout, is_there: bool) -> Option<()> {
    if VERDICT.load(Ordering::Relaxed) == UNKNOWN && is_there {
        let is_good = run(py).is_some() && TRIAL.has_seen(WANTED);
        VERDICT.store(if is_good { GOOD } else { BAD }, Ordering::Relaxed);
        if !is_good {
            Trouble::OtherFrames.note();
        }
    }
    (VERDICT.load(Ordering::Relaxed) != BAD).then_some(())
}

fn run(py: Python<'_>) -> Option<()> {
    let names = py.run(SOURCE, c"<tllmprof>")?;
    TRIAL.next.store(0, Ordering::Relaxed);
    let token = names.item(c"token")?.addr();
    TRIAL.token.store(token, Ordering::Relaxed);
    for code in names.item(c"codes")?.elements() {
        marked::add(py, Mark::new(py, &code, Watch::Calls(&TRIAL))?);
    }
    let ran = names.item(c"run")?.call(&[]);
    let is_ours = |watch| matches!(watch, Watch::Calls(calls) if core::ptr::addr_eq(calls, &TRIAL));
    marked::remove(py, is_ours);
    ran.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_passes_if_all_was_seen_and_nothing_else() {
        let trial = Trial::new();
        for seen in WANTED {
            assert!(!trial.has_seen(WANTED));
            trial.note(*seen);
        }
        assert!(trial.has_seen(WANTED));
        trial.note(SeenEvent::Ends);
        assert!(!trial.has_seen(WANTED));
    }

    #[test]
    fn a_call_without_its_first_argument_is_wrong() {
        let trial = Trial::new();
        trial.token.store(0x1000, Ordering::Relaxed);
        trial.note(trial.beginning(0x1000, false));
        trial.note(trial.beginning(0, true));
        assert!(trial.has_seen(&[SeenEvent::Begins, SeenEvent::GoesOn]));
        trial.note(trial.beginning(0x2000, false));
        assert!(trial.has_seen(&[SeenEvent::Begins, SeenEvent::GoesOn, SeenEvent::Wrong]));
    }

    #[test]
    fn more_than_there_is_room_for_is_not_what_was_wanted() {
        let trial = Trial::new();
        for _ in 0..40 {
            trial.note(SeenEvent::Begins);
        }
        assert!(!trial.has_seen(&[SeenEvent::Begins; 32]));
    }
}
