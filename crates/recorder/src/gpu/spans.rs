//! Begins and ends spans (a stream's work in one iteration). A span is timed with a CUDA event at each end,
//! or with the host's clock.

use core::sync::atomic::Ordering;
use core::time::Duration;

use tllmprof_sync::Guard;

use super::driver::{Driver, Pair};
use super::pool::{self, Index, StreamSpan};
use super::span::{Ending, Fate, Why};
use super::streams::{self, Open, Stream, StreamKey};
use super::{BY_CLOCK, LATEST, PAIRS, is_taken, timed};
use crate::clock;

/// Begins a span of `iteration`, in the stream `known` or, if it is `None`, in a stream that is added to the table of
/// streams. If that fails and the iteration is measured, counts the span as lost.
#[cold]
pub(crate) fn begin(
    driver: Driver,
    key: StreamKey,
    known: Option<&'static Stream>,
    iteration: u64,
) {
    if let Some(stream) = known
        && let Some(mut open) = stream.span.try_lock()
        && stream.is(key)
        && stream.open().is_none()
        && !stream.has_begun(iteration)
        && begins_without_events(stream, &mut open, iteration)
    {
        return;
    }
    timed(|| {
        if begun(driver, key, known, iteration).is_none() && is_taken(iteration) {
            pool::lose(1);
        }
    });
}

/// Returns true if the stream needs no CUDA events for a span of `iteration`. If the iteration is not measured, stores
/// that no span begins. If the span is to be timed with the host's clock, begins it. The stream must have no open span.
fn begins_without_events(stream: &Stream, open: &mut Open, iteration: u64) -> bool {
    if !is_taken(iteration) {
        // GPU times of this iteration are not measured, so the span does not count as lost.
        stream.miss(iteration);
        return true;
    }
    let goes_by_clock = open.goes_by_clock(iteration);
    if goes_by_clock {
        BY_CLOCK.fetch_add(1, Ordering::Relaxed);
        stream.begin(open, None, iteration, clock::ticks());
    }
    goes_by_clock
}

/// Begins a span. Returns `None` if a span should have begun but could not.
fn begun(
    driver: Driver,
    key: StreamKey,
    known: Option<&'static Stream>,
    iteration: u64,
) -> Option<()> {
    let stream = match known {
        Some(stream) => stream,
        None => streams::insert(key, key.context(driver))?,
    };
    let Some(mut open) = stream.span.try_lock().filter(|_| stream.is(key)) else {
        return Some(()); // another thread is beginning this span
    };
    if stream.has_begun(iteration) {
        return Some(());
    }
    if stream.open().is_some() {
        end_locked(driver, stream, &mut open, Why::Next);
    }
    if begins_without_events(stream, &mut open, iteration) {
        return Some(());
    }
    if driver.is_capturing(stream.handle()) {
        return Some(());
    }
    let begun = give_first(driver, stream);
    match begun {
        Some(_) => {
            PAIRS.fetch_add(1, Ordering::Relaxed);
            stream.begin(&mut open, begun, iteration, clock::ticks());
        }
        None => stream.miss(iteration),
    }
    begun.map(drop)
}

/// Records the first CUDA event of a span in its stream. Returns the span's pair of CUDA events and its index in the
/// pool. Returns `None` if no pair is available, if the stream has been destroyed, or if the driver refuses the event.
fn give_first(driver: Driver, stream: &Stream) -> Option<(Index, Pair)> {
    let (index, pair) =
        pool::get_or_create(driver, stream.context())?.take(driver, stream.context())?;
    let handle = stream.handle();
    if handle == 0 {
        pool::known(stream.context())?.put_back(index);
        return None;
    }
    match driver.record(pair.start, handle) {
        Ok(()) => Some((index, pair)),
        Err(status) => {
            if let Some(mut pool) = pool::known(stream.context()) {
                pool.put_back(index);
                pool.refused(status);
            }
            None
        }
    }
}

/// Records the last CUDA event of the stream's open span, unless it was already recorded after all launches of the
/// span. Returns false if the event cannot be recorded.
pub(crate) fn give_last(driver: Driver, stream: &Stream, open: &mut Guard<'_, Open>) -> bool {
    let launches = stream.settle();
    if open.covered == launches {
        return true;
    }
    // The handle is 0 if the program has destroyed the stream since the span began.
    let handle = stream.handle();
    if handle == 0 || !stream.is_in_reach(driver) || driver.is_capturing(handle) {
        return false;
    }
    let given = driver.record(open.events.end, handle);
    match given {
        Ok(()) => open.covered = launches,
        Err(status) => {
            if let Some(mut pool) = pool::known(stream.context()) {
                pool.refused(status);
            }
        }
    }
    given.is_ok()
}

pub(crate) fn end_span(driver: Driver, stream: &Stream, why: Why) {
    let open = match why {
        Why::Wait | Why::Next | Why::Iteration => stream.span.try_lock(),
        Why::End | Why::Capture => stream.span.lock_for(Duration::from_millis(20)),
    };
    if let Some(mut open) = open
        && stream.open().is_some()
    {
        end_locked(driver, stream, &mut open, why);
    }
}

pub(crate) fn end_locked(driver: Driver, stream: &Stream, open: &mut Guard<'_, Open>, why: Why) {
    if open.by_clock {
        // A span timed with the host's clock ends only in `after_wait`, when a wait for its stream has returned. If it
        // has to end for another reason than a wait, its time is lost.
        if why != Why::Wait {
            pool::lose(usize::from(stream.launches() > 0));
            stream.end(open);
        }
        return;
    }
    let ending = Ending {
        why,
        launches: stream.launches(),
        covered: open.covered,
        iteration: open.iteration(),
        latest: LATEST.load(Ordering::Relaxed),
        is_legacy: stream.is_legacy(),
    };
    let (is_whole, cut, lost) = match ending.fate() {
        Fate::Stays => return,
        Fate::Empty => (false, false, 0),
        Fate::Whole => (true, false, 0),
        Fate::GiveLast { cut } => {
            let is_given = give_last(driver, stream, open);
            (is_given, cut, usize::from(!is_given))
        }
        Fate::Lost => (false, false, 1),
    };
    // The span ends here: a launch that another thread makes after this line belongs to the stream's next span.
    stream.end(open);
    let Some(mut pool) = pool::known(stream.context()) else {
        return pool::lose(1);
    };
    if is_whole {
        let span = StreamSpan {
            pair: open.pair,
            stream: stream.number(),
            cut,
            iteration: open.iteration(),
            since: open.since,
        };
        pool.add(driver, span);
    } else {
        pool.put_back(open.pair);
        pool::lose(lost);
    }
}
