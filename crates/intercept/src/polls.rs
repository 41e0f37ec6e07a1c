//! Waits by polling. A program that repeats a query such as `cuEventQuery` until it succeeds waits for the GPU. The
//! series of queries is counted and recorded as one wait, which ends with the query that succeeds.

use core::ffi::c_void;

use tllmprof_calls::{Call, CallPurpose, Library, Stream};
use tllmprof_platform::driver;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::function;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::{self, Inside};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::gpu::{self, StreamArgument};
use tllmprof_recorder::watch::{self, Cause};
use tllmprof_session as session;
use tllmprof_steps::step::polls::{Polled, QueryResult};

use super::frame::is_below;
use super::gpu_times::{is_timing, waited_for};
use super::thunk::{Role, Thunk};

/// Value of `CUDA_ERROR_NOT_READY` and `cudaErrorNotReady`.
const NOT_READY: u32 = 600;

/// Value of `CUDA_ERROR_NOT_INITIALIZED` and `cudaErrorInitializationError`.
const NOT_INITIALIZED: usize = 3;

/// Type of the functions that ask whether GPU work has finished.
type Query = unsafe extern "C-unwind" fn(usize) -> usize;

/// Chooses the handler for `thunk`, which describes a query function of a CUDA runtime, or a front (a function of
/// another library with the name of a driver's query function). The function's calls are passed through without being
/// watched if its driver calls reach this library, or if this library is not active in this process. Does nothing until
/// the driver is loaded.
pub(crate) fn choose_handler(thunk: &Thunk, call: Call) {
    if !driver::is_loaded() {
        return;
    }
    if !session::activity::is_active() || thunk.is_fed(call) {
        thunk.make_transparent();
    } else {
        thunk.watch_queries();
    }
}

/// Calls the function of `thunk`, which asks whether the work of `handle` has finished, and returns its result. `place`
/// is an address on the stack: the return address of the program's call lies at this address or above.
pub(crate) unsafe extern "C-unwind" fn queried(
    handle: usize,
    thunk: &'static Thunk,
    place: usize,
) -> usize {
    let real: *mut c_void = thunk.real();
    // SAFETY: the handler is used only for thunks of queries, so the real function has this type.
    let Some(real) = (unsafe { function::at::<Query>(real) }) else {
        return NOT_INITIALIZED;
    };
    let is_timed = recorder::is_keeping() || watch::is_watching();
    let since = if is_timed { recorder::ticks() } else { 0 };
    // SAFETY: the argument is the caller's.
    let result = unsafe { real(handle) };
    // No panic: this only compares and stores numbers. `begin_thread`, `begins` and `ends` catch the panics of the
    // other code.
    if !is_below(place, thread::outer()) {
        note(handle, thunk, since, result);
    }
    result
}

/// Adds the result of a query that the program made to the thread's current series of queries. If a wait by polling
/// ends with this query, counts and records the wait.
#[inline]
fn note(handle: usize, thunk: &'static Thunk, since: u64, result: usize) {
    // The result of the call is an enumeration, in the lower half of the register; 0 means success.
    let result = match result as u32 {
        0 => QueryResult::Done,
        NOT_READY => QueryResult::NotReady,
        _ => QueryResult::Failed,
    };
    let Some(slot) = session::slot() else {
        if result == QueryResult::NotReady {
            begin_thread();
        }
        return;
    };
    match slot
        .polls()
        .note(handle as u64, result, since, slot.calls_made())
    {
        Polled::Nothing => {}
        Polled::Begins => begins(handle, thunk),
        Polled::Ends { since: first } => ends(handle, thunk, first, since),
    }
}

/// Gives the calling thread counters for its calls, if this process must learn from, record or time the thread's waits.
#[cold]
fn begin_thread() {
    let _errno = SavedErrno::new();
    let Some(_inside) = Inside::enter() else {
        return;
    };
    contained((), || {
        let is_wanted = session::learns() || recorder::is_wanted() || watch::is_watching();
        if session::activity::is_active() && is_wanted {
            session::new_thread(true);
        }
    });
}

/// Returns the call of `thunk`'s function, the work about which the function asks, and the stream argument. Returns
/// `None` if the function does not ask about work.
fn asked(handle: usize, thunk: &Thunk) -> Option<(Call, gpu::Wait, StreamArgument)> {
    let (Role::Driver(call) | Role::Runtime(call) | Role::Front(call)) = thunk.role() else {
        return None;
    };
    let CallPurpose::Query(wait) = call.kind() else {
        return None;
    };
    let target = StreamArgument {
        handle,
        per_thread: thunk.is_per_thread(),
    };
    let has_stream = call.stream(Library::Driver) != Stream::None;
    Some((call, waited_for(wait, has_stream.then_some(target)), target))
}

/// Reports the beginning of a wait to the measurement of GPU times.
#[cold]
fn begins(handle: usize, thunk: &Thunk) {
    if !is_timing() {
        return;
    }
    let _errno = SavedErrno::new();
    let Some(_inside) = Inside::enter() else {
        return;
    };
    contained((), || {
        if let Some((_, wait, _)) = asked(handle, thunk) {
            gpu::before_wait(wait);
        }
    });
}

/// Counts and records a wait by polling. The first query of the series began at `first`, and the last one, which found
/// the work done, at `since`. Both times are in ticks. `first` is `None` if the series has only one query.
#[cold]
fn ends(handle: usize, thunk: &Thunk, first: Option<u64>, since: u64) {
    let _errno = SavedErrno::new();
    let Some(_inside) = Inside::enter() else {
        return;
    };
    contained((), || {
        if let Some((call, wait, target)) = asked(handle, thunk)
            && !session::is_capturing()
        {
            // The time of a query is 0 if times were not needed when the program made the query. For example, a window
            // may have opened after the first query of the series, so that only the time of a later query is known.
            let begin = first.filter(|first| *first != 0).unwrap_or(since);
            if since != 0 {
                record(call, target, begin);
            }
            if is_timing() && gpu::before_wait(wait) {
                gpu::after_wait(target, begin, recorder::ticks());
            }
            session::count(call.into());
            if session::learns() {
                session::note(call, &[handle], false);
                session::returned(call, handle, true);
            }
        }
    });
}

/// Records a wait that began at `begin`, which is in ticks, and ends now.
fn record(call: Call, target: StreamArgument, begin: u64) {
    let until = recorder::ticks();
    watch::add(Cause::Wait, until.saturating_sub(begin));
    let what = What::Call {
        row: call as u8,
        capturing: false,
        stream: if call.stream(Library::Driver) == Stream::None {
            0
        } else {
            target.handle as u64
        },
    };
    recorder::call(begin, until, false, what);
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use tllmprof_platform::thread::uncounted;
    use tllmprof_record::contents::Contents;

    use super::*;
    use crate::made::{alone, record_of, recorded};

    thread_local! {
        /// The results of the next queries, the last one first.
        static RESULTS: Cell<Vec<usize>> = const { Cell::new(Vec::new()) };
    }

    /// Simulates a query of the driver, whose argument is 0x77.
    unsafe extern "C-unwind" fn query(handle: usize) -> usize {
        assert_eq!(handle, 0x77);
        let mut results = RESULTS.take();
        let result = results.pop().unwrap();
        RESULTS.set(results);
        result
    }

    /// Simulates a launch function of the driver.
    extern "C" fn launch(_: usize, _: usize) -> usize {
        0
    }

    fn stub<F: Copy>(real: *mut c_void, role: Role) -> F {
        let thunk = Thunk::for_function(real, role).unwrap();
        // SAFETY: the stub leads to a function of this type.
        unsafe { function::at(thunk.stub()) }.unwrap()
    }

    fn event_query() -> Query {
        stub(query as Query as *mut _, Role::Driver(Call::EventQuery))
    }

    /// Makes a query for each of `results`, and checks that the program gets them.
    fn ask(results: &[usize]) {
        let ask = event_query();
        RESULTS.set(results.iter().rev().copied().collect());
        for result in results {
            // SAFETY: the function is `query`.
            assert_eq!(unsafe { ask(0x77) }, *result);
        }
    }

    fn launches() -> extern "C" fn(usize, usize) -> usize {
        type Launch = extern "C" fn(usize, usize) -> usize;
        stub(launch as Launch as *mut _, Role::Driver(Call::GraphLaunch))
    }

    fn waits() -> u64 {
        let slot = session::slot();
        slot.map_or(0, |slot| slot.live(Call::EventQuery).count())
    }

    fn recorded_waits(contents: &Contents) -> Vec<(u64, u64)> {
        let waits = contents.events.iter().filter(|(_, event)| {
            matches!(event.what, What::Call { row, .. } if row == Call::EventQuery as u8)
        });
        waits
            .map(|(_, event)| (event.start, event.start + event.duration))
            .collect()
    }

    #[test]
    fn a_series_of_queries_is_recorded_as_one_wait() {
        let path = record_of("polls");
        let variables = [
            ("TLLMPROF_STEP", "cuGraphLaunch"),
            ("TLLMPROF_START_STOP", "0-9"),
            ("TLLMPROF_TRACE", path.as_str()),
        ];
        alone(&variables, || {
            let launch = launches();
            let mut moments = Vec::new();
            let contents = recorded(|| {
                launch(1, 2);
                moments.push(recorder::ticks());
                ask(&[600, 600, 600]);
                moments.push(recorder::ticks());
                ask(&[0]);
                moments.push(recorder::ticks());
                assert_eq!(waits(), 1);
                ask(&[0, 0]);
                assert_eq!(waits(), 1, "there is nothing to wait for");
                launch(1, 2);
                ask(&[0]);
                assert_eq!(waits(), 1, "the thread is not known to poll");
                for _ in 0..3 {
                    launch(1, 2);
                    ask(&[600, 0]);
                }
                launch(1, 2);
                ask(&[0]);
                assert_eq!(waits(), 5);
                ask(&[700, 600, 700, 0]);
                assert_eq!(waits(), 5, "errors are no waits");
                launch(1, 2);
                uncounted(&mut || ask(&[600, 0]));
                assert_eq!(waits(), 5, "these are the library's own");
            });
            let found = recorded_waits(&contents);
            assert_eq!(found.len(), 5, "{found:?}");
            let (begin, end) = found[0];
            assert!(
                (moments[0]..=moments[1]).contains(&begin),
                "{found:?} {moments:?}"
            );
            assert!(
                (moments[1]..=moments[2]).contains(&end),
                "{found:?} {moments:?}"
            );
        });
    }

    #[test]
    fn waits_by_polling_are_counted_while_steps_are_learnt() {
        alone(&[("TLLMPROF_STEP", "auto")], || {
            let launch = launches();
            for step in 1..=200 {
                for _ in 0..4 {
                    launch(1, 2);
                }
                ask(&[600, 600, 0]);
                assert_eq!(waits(), step);
            }
        });
    }
}
