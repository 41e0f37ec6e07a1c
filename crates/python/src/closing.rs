//! Counts the threads that run Python code of the library, and lets no more threads begin to do so once the interpreter
//! ends.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::object::Python;
use tllmprof_platform::lifecycle;
use tllmprof_sync::wait;
use tllmprof_sync::wake;

/// The longest time that the end of the interpreter waits for threads that still run Python code of the library, or
/// have released the GIL in [`without_gil`]. `WRITE_TIMEOUT` applies instead while PyTorch's profiler collects or
/// writes a trace.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the end of the interpreter checks again if PyTorch's profiler is still busy with a trace.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Duration of one wait in [`park`], which repeats the wait forever.
const PARKED_WAIT: Duration = Duration::from_secs(3600);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the interpreter may be ending")]
    #[restart(reset)]
    static CLOSED: AtomicBool = AtomicBool::new(false);
    /// Number of threads that run Python code of the library, or are about to.
    #[fork(reset)]
    #[restart(keep)]
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    /// Number of threads of the program that have released the GIL in the library's code ([`without_gil`]), and are
    /// going to take it again. They are not counted in `INSIDE`: they do the library's work without the GIL, so a
    /// thread that holds the GIL may wait for this work.
    #[fork(reset)]
    #[restart(keep)]
    static RELEASED: AtomicU32 = AtomicU32::new(0);
}

/// Returns true if the interpreter is ending or has ended, or if the library must not make system calls in this
/// process.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Acquire) || lifecycle::is_filtered()
}

/// Returns true if any thread runs Python code of the library, or is about to. Such threads may need the GIL to
/// continue. So a thread that holds the GIL must not wait for them.
pub(crate) fn is_waiting_for_gil() -> bool {
    INSIDE.load(Ordering::SeqCst) != 0
}

/// Counts a thread among those that run Python code of the library, from `begin` until this value
/// is dropped.
struct Flight<'a> {
    inside: &'a AtomicU32,
    closed: &'a AtomicBool,
}

impl<'a> Flight<'a> {
    /// Adds 1 to `inside`, the number of these threads. Subtracts it again and returns `None` if no more threads may
    /// enter (`closed`).
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

/// While this value lives, the calling thread is counted among those that run Python code of the library. The
/// thread holds the GIL when it creates the value.
pub(crate) struct Inside(#[expect(dead_code, reason = "it is dropped")] Flight<'static>);

/// Counts the calling thread among those that run Python code of the library. Returns `None` if the
/// interpreter is ending or has ended.
pub(crate) fn inside() -> Option<Inside> {
    Flight::begin(&INSIDE, &CLOSED).map(Inside)
}

/// Runs `act` without the GIL, like [`Python::without_gil`], on a thread of the program that continues to run Python
/// code. The end of the interpreter waits, for a limited time (see [`close`]), until this thread has the GIL again: up
/// to 3.13, CPython would otherwise end the thread with `pthread_exit`, whose unwinding through the library's code
/// aborts the process. If the end of the interpreter has stopped waiting, the thread waits forever instead. If the
/// interpreter is already ending when this function is called, `act` runs with the GIL.
pub(crate) fn without_gil<R: Send>(py: Python<'_>, act: impl FnOnce() -> R + Send) -> R {
    let api = py.api;
    let Some(released) = Flight::begin(&RELEASED, &CLOSED).filter(|_| api.runs()) else {
        return act();
    };
    let (result, _released) = py.without_gil(move || {
        let result = act();
        if !api.runs() {
            // The interpreter is ending and no longer waits for this thread, so the thread must not take the GIL again.
            drop(released);
            park();
        }
        (result, released)
    });
    result
}

/// Lets the calling thread wait forever, as CPython does from 3.14 on with a thread that wants the GIL of an ending
/// interpreter.
fn park() -> ! {
    let never = AtomicU32::new(0);
    loop {
        wait(&never, 0, PARKED_WAIT);
    }
}

/// Closes the library's entry to Python because the interpreter ends: no more threads may run Python code of the
/// library. Waits for the threads that already do, and for those that have released the GIL ([`without_gil`]). The wait
/// is limited to [`END_TIMEOUT`], or to `WRITE_TIMEOUT` while `writes` returns true, which means that PyTorch's profiler
/// collects or writes a trace.
pub(crate) fn close(py: Python<'_>, writes: fn() -> bool) {
    CLOSED.store(true, Ordering::SeqCst);
    let counts = [&INSIDE, &RELEASED];
    if counts.iter().any(|count| count.load(Ordering::SeqCst) > 0) {
        // These threads need the GIL to finish, so this thread releases it while it waits.
        py.without_gil(|| {
            let since = Instant::now();
            for count in counts {
                let patience = || if writes() { WRITE_TIMEOUT } else { END_TIMEOUT };
                await_empty(count, since, patience);
            }
        });
    }
}

/// Waits until `inside`, a number of threads, is 0. The wait ends at the latest when the time `patience()` has passed
/// since `since`. The result of `patience` may change during the wait.
fn await_empty(inside: &AtomicU32, since: Instant, patience: impl Fn() -> Duration) {
    loop {
        let count = inside.load(Ordering::SeqCst);
        let left = patience().saturating_sub(since.elapsed());
        if count == 0 || left.is_zero() {
            break;
        }
        wait(inside, count, left.min(CHECK_INTERVAL));
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
            await_empty(&inside, since, || LONG);
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            assert!(since.elapsed() < LONG);
        });
    }

    #[test]
    fn closing_gives_up_after_a_while() {
        let inside = AtomicU32::new(1);
        let since = Instant::now();
        await_empty(&inside, since, || Duration::from_millis(5));
        assert!(since.elapsed() >= Duration::from_millis(5));
        assert_eq!(inside.load(Ordering::SeqCst), 1);
    }
}
