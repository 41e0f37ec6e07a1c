//! Running Python at a moment of our own choosing, and not any more once the interpreter ends.
//!
//! A thread that asks for the GIL while the interpreter is being finalised is ended by it, or hangs
//! for ever: fatal for a C++ program's thread. An `atexit` callback closes the way in ([`close`]), and
//! waits for those that are inside.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::api::Api;
use super::object::Python;
use super::{attached, threads};
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_sync::wait;
use tllmprof_sync::wake;

/// How long the end of the interpreter waits for those that are inside, and how long if one of them
/// writes a trace.
const PATIENCE: Duration = Duration::from_secs(5);
const WRITING: Duration = Duration::from_secs(60);
/// How often it is looked whether one does.
const LOOK: Duration = Duration::from_secs(1);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the interpreter may be ending")]
    #[restart(reset)]
    static CLOSED: AtomicBool = AtomicBool::new(false);
    /// Threads that are inside.
    #[fork(reset)]
    #[restart(keep)]
    static INSIDE: AtomicU32 = AtomicU32::new(0);
}

/// Whether the interpreter is ending, or has ended, or the library does nothing any more.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Acquire) || lifecycle::is_filtered()
}

/// Whether a thread is inside, or about to be, and so may need the GIL to go on: one that has it must
/// not wait for that thread.
pub fn is_waiting_for_gil() -> bool {
    INSIDE.load(Ordering::SeqCst) != 0
}

/// Whether the calling thread has the GIL.
pub fn has_gil() -> bool {
    attached::api().is_some_and(|api| api.runs() && api.has_gil())
}

/// A thread is inside: in these counts.
struct Flight<'a> {
    inside: &'a AtomicU32,
    closed: &'a AtomicBool,
}

impl<'a> Flight<'a> {
    /// None where the way in is closed.
    fn begin(inside: &'a AtomicU32, closed: &'a AtomicBool) -> Option<Self> {
        inside.fetch_add(1, Ordering::SeqCst);
        let flight = Self { inside, closed };
        (!closed.load(Ordering::SeqCst)).then_some(flight)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.inside.fetch_sub(1, Ordering::SeqCst) == 1 && self.closed.load(Ordering::SeqCst) {
            wake(self.inside, i32::MAX);
        }
    }
}

/// The calling thread, which has the GIL, is inside for as long as this lives.
pub struct Inside(#[expect(dead_code, reason = "it is dropped")] Flight<'static>);

/// None where the way in is closed.
pub fn inside() -> Option<Inside> {
    Flight::begin(&INSIDE, &CLOSED).map(Inside)
}

/// Runs `act` with the GIL, on the calling thread, whether that is one of Python's or not. None
/// where there is no interpreter (any more), where the thread is in such a call already, or where
/// the GIL could not be taken without harm.
pub fn run<R>(act: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let api = attached::api()?;
    let _flight = Flight::begin(&INSIDE, &CLOSED)?;
    let thread = threads::current()?;
    if thread.is_busy.get() || !api.runs() {
        return None;
    }
    let has_gil = api.has_gil();
    if !has_gil
        && !api.version.knows_holders_in_sub_interpreters()
        && attached::has_sub_interpreters()
    {
        // A thread that has the GIL for a sub-interpreter looks as if it had none, and would wait
        // for itself.
        log::once!(
            Warn,
            "Python {} with sub-interpreters: what needs its GIL at a window's edge is left out",
            api.version
        );
        return None;
    }
    struct Taken<'a>(&'a Api, c_int);
    impl Drop for Taken<'_> {
        fn drop(&mut self) {
            // SAFETY: what `gil_ensure` gave, on the same thread; `act` is over.
            unsafe { (self.0.gil_release)(self.1) };
        }
    }
    Some(thread.busily(|| {
        // With the GIL the state is left as it is: asked for it, 3.12 and later take the thread's state
        // in the main interpreter, and wait for themselves where that is not the one it has.
        // SAFETY: the interpreter is there, and stays as long as this thread is inside.
        let _taken = (!has_gil).then(|| Taken(api, unsafe { (api.gil_ensure)() }));
        // SAFETY: the thread has the GIL until it is given back.
        unsafe { Python::assume(api) }.quietly(act)
    }))
}

/// Closes the way in, as the interpreter ends, and waits for those that are inside; longer while one
/// of them `writes` a trace.
pub fn close(py: Python<'_>, writes: fn() -> bool) {
    CLOSED.store(true, Ordering::SeqCst);
    if INSIDE.load(Ordering::SeqCst) > 0 {
        // Those inside need the GIL to leave.
        py.without_gil(|| await_empty(&INSIDE, || if writes() { WRITING } else { PATIENCE }));
    }
}

/// Waits until nobody is inside, for as long as `patience` allows, which may change meanwhile.
fn await_empty(inside: &AtomicU32, patience: impl Fn() -> Duration) {
    let since = Instant::now();
    loop {
        let count = inside.load(Ordering::SeqCst);
        let left = patience().saturating_sub(since.elapsed());
        if count == 0 || left.is_zero() {
            break;
        }
        wait(inside, count, left.min(LOOK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_comes_in_once_it_is_closed() {
        let (inside, closed) = (AtomicU32::new(0), AtomicBool::new(false));
        let first = Flight::begin(&inside, &closed);
        assert!(first.is_some());
        closed.store(true, Ordering::SeqCst);
        assert!(Flight::begin(&inside, &closed).is_none());
        assert_eq!(inside.load(Ordering::SeqCst), 1);
        drop(first);
        assert_eq!(inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn closing_waits_for_those_inside() {
        let (inside, closed) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let flight = Flight::begin(&inside, &closed).unwrap();
            closed.store(true, Ordering::SeqCst);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                drop(flight);
            });
            let since = Instant::now();
            await_empty(&inside, || LONG);
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            assert!(since.elapsed() < LONG);
        });
    }

    #[test]
    fn closing_gives_up_after_a_while() {
        let inside = AtomicU32::new(1);
        let since = Instant::now();
        await_empty(&inside, || Duration::from_millis(5));
        assert!(since.elapsed() >= Duration::from_millis(5));
        assert_eq!(inside.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn without_an_interpreter_nothing_is_run() {
        assert_eq!(run(|_| ()), None);
        assert!(!has_gil());
    }
}
