//! Measures the machine's resources that each iteration of a window uses: processor time, page faults, preemptions
//! and time in waits of the thread that runs the steps.
//!
//! Only one thread at a time measures at the end of an iteration. It holds the lock on the session's state (the state
//! of steps and windows), or it is opening or closing a window. In most iterations, the measurement takes one system
//! call. A full measurement takes one more system call, or two more if the thread left its processor. A measured wait
//! for the GPU takes two more. A full measurement and a measured wait occur only in one of [`MEASURE_EVERY`] iterations;
//! unusual iterations also get a full measurement.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::os::unix::fs::FileExt;

use tllmprof_platform::descriptor::OwnFile;
use tllmprof_platform::ids;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_platform::system::{self, SystemClock, ThreadUsage};
use tllmprof_platform::thread::{self, ThreadRecord};
use tllmprof_record::{Event, Used, What};
use tllmprof_sync::Lock;

use super::state::{Looks, look_for, looks_for};
use super::{clock, writers};

lifecycle::global! {
    stage: Sinks;

    /// The thread whose resource usage was last measured.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static THREAD: AtomicU64 = AtomicU64::new(0);
    /// The usage of the thread [`THREAD`] when it was last measured: one number for each kind of resource, in the order
    /// that [`take`] stores them. The last number is [`UNKNOWN`] as long as it could not be read.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static SO_FAR: [AtomicU64; PARTS] = [const { AtomicU64::new(0) }; PARTS];
    /// The time when the latest iteration ended, in ticks.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static ENDED: AtomicU64 = AtomicU64::new(0);
    /// The number of iterations since the last full measurement.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static SINCE: AtomicU64 = AtomicU64::new(0);
    /// The number of the latest iteration that [`SINCE`] counts.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static LATEST: AtomicU64 = AtomicU64::new(0);
    /// The duration, in nanoseconds, of the iteration that was fully measured last.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static TOOK: AtomicU64 = AtomicU64::new(0);
    /// A thread's id, and its open file `/proc/self/task/N/schedstat`. The file stays open while that thread makes the
    /// steps. Opening the file for each measurement would each time take the lowest free descriptor number for a
    /// moment, which the program may expect to get.
    #[fork(hold)]
    static FILE: Lock<Option<(u64, OwnFile)>> = Lock::new(None);

    /// The waiting thread's processor time, in nanoseconds, at the start of the wait for the GPU that is being
    /// measured.
    #[fork(keep = "stored where a window opens")]
    static RAN_BEFORE: AtomicU64 = AtomicU64::new(0);
    /// The start of the wait for the GPU that is being measured, in nanoseconds of `CLOCK_MONOTONIC`; 0 if no wait is
    /// being measured.
    #[fork(keep = "stored where a window opens")]
    static WAITS_SINCE: AtomicU64 = AtomicU64::new(0);
    /// The number of iterations until a wait for the GPU is measured again.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static PASS: AtomicU64 = AtomicU64::new(0);
    /// The time of the waits for the GPU in the latest iteration whose waits were measured: nanoseconds on a
    /// processor, and nanoseconds in total.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static LAST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    /// The processor time, in nanoseconds, of the waits for the GPU that were measured in the current iteration.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static RAN_IN_WAITS: AtomicU64 = AtomicU64::new(0);
    /// The duration, in nanoseconds, of the waits for the GPU that were measured in the current iteration.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static WAITED: AtomicU64 = AtomicU64::new(0);
}

lifecycle::at_fork! {
    stage: Stage::Again,
    child: in_child,
}

/// Discards the measurements in the child of a fork, because they belong to a thread of the parent.
fn in_child(_: &OnlyThread) {
    SINCE.store(0, Ordering::Relaxed);
    window_closes();
}

/// The number of values that are measured for a thread.
pub(crate) const PARTS: usize = 7;
/// The value in [`SO_FAR`] for a time in the run queue that could not be read yet.
const UNKNOWN: u64 = u64::MAX;

/// One in this many iterations is fully measured (waits, page faults and the like). More measurements would show
/// nothing new: a thread keeps its way of waiting (spinning or sleeping) for many iterations.
const MEASURE_EVERY: u64 = 8;
/// A full measurement is made if the thread was off its processor for more than one `OFF_DIVISOR`th of the
/// iteration's duration.
const OFF_DIVISOR: u64 = 64;
/// A full measurement is also made after a longer iteration: one that exceeds the duration of the iteration that was
/// fully measured last by more than one `LONGER_DIVISOR`th.
const LONGER_DIVISOR: u64 = 8;

/// Starts measuring when a window opens. The calling thread is assumed to be the one that runs the steps.
pub(crate) fn window_opens() {
    let now = system::own_processor_time().and_then(system::used);
    take(now.unwrap_or_default(), delayed());
    TOOK.store(0, Ordering::Relaxed);
    ENDED.store(clock::ticks(), Ordering::Relaxed);
    forget_waits();
}

/// Called when the window closes. Ends the measurement of resources.
pub(crate) fn window_closes() {
    // Resources that were used since the last full measurement are recorded for the last iteration
    // of the window.
    if SINCE.load(Ordering::Relaxed) > 0
        && THREAD.load(Ordering::Relaxed) == this_thread()
        && let Some(now) = system::own_processor_time().and_then(system::used)
    {
        let used = taken(now);
        write(LATEST.load(Ordering::Relaxed), &used[1..]);
    }
    if let Some(mut file) = FILE.try_lock() {
        *file = None;
    }
}

/// Returns the time in nanoseconds that the calling thread has spent waiting for a processor since it began.
/// Returns `None` if the kernel does not report it. Takes some microseconds.
fn delayed() -> Option<u64> {
    let mut file = FILE.try_lock()?;
    let thread = this_thread();
    if file.as_ref().is_none_or(|(of, _)| *of != thread) {
        let path = format!("/proc/self/task/{thread}/schedstat");
        let opened = File::open(path).and_then(OwnFile::new);
        *file = opened.ok().map(|opened| (thread, opened));
    }
    let mut room = [0; 64];
    let length = file.as_ref()?.1.get()?.read_at(&mut room, 0).ok()?;
    parse(room.get(..length)?)
}

/// Parses `/proc/.../schedstat` (format: Documentation/scheduler/sched-stats.rst): time on a processor, time
/// in the run queue, number of time slices. Returns the time in the run queue, in nanoseconds.
fn parse(schedstat: &[u8]) -> Option<u64> {
    let mut words = schedstat.split(|byte| *byte == b' ');
    str::from_utf8(words.nth(1)?).ok()?.parse().ok()
}

/// Called when the calling thread begins to wait for the GPU. Begins to measure the wait if one is to be measured and
/// this thread runs the steps. Returns true if a wait is to be measured, even if another thread runs the steps. Then
/// the caller has to call [`wait_ends`] after the wait.
#[inline(always)]
pub fn wait_begins() -> bool {
    let is_asked = looks_for(Looks::Wait);
    if is_asked {
        asked_wait_begins();
    }
    is_asked
}

#[cold]
fn asked_wait_begins() {
    if THREAD.load(Ordering::Relaxed) == this_thread() {
        RAN_BEFORE.store(system::own_processor_time().unwrap_or(0), Ordering::Relaxed);
        WAITS_SINCE.store(
            system::nanoseconds(SystemClock::Monotonic),
            Ordering::Relaxed,
        );
    }
}

/// Ends the measurement of a wait for the GPU, if the wait was measured. Called when the wait is over.
#[inline(always)]
pub fn wait_ends() {
    let since = WAITS_SINCE.load(Ordering::Relaxed);
    if since != 0 {
        asked_wait_ends(since);
    }
}

#[cold]
fn asked_wait_ends(since: u64) {
    if THREAD.load(Ordering::Relaxed) != this_thread() {
        return;
    }
    let took = system::nanoseconds(SystemClock::Monotonic).saturating_sub(since);
    WAITS_SINCE.store(0, Ordering::Relaxed);
    let before = RAN_BEFORE.load(Ordering::Relaxed);
    if let Some(now) = system::own_processor_time().filter(|_| before > 0) {
        look_for(Looks::Wait, false);
        RAN_IN_WAITS.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        WAITED.fetch_add(took, Ordering::Relaxed);
    }
}

/// Returns the latest measurement of waits for the GPU: nanoseconds on a processor, and nanoseconds in total. If no
/// wait was measured in the iteration that ends, the result is the measurement of an earlier iteration. Also decides
/// whether the next iteration's wait is measured.
fn of_waits() -> (u64, u64) {
    WAITS_SINCE.store(0, Ordering::Relaxed);
    let asked = [&RAN_IN_WAITS, &WAITED].map(|part| part.swap(0, Ordering::Relaxed));
    let pass = match asked {
        [_, 0] => PASS.load(Ordering::Relaxed).saturating_sub(1),
        [ran, took] => {
            LAST[0].store(ran, Ordering::Relaxed);
            LAST[1].store(took, Ordering::Relaxed);
            MEASURE_EVERY - 1
        }
    };
    PASS.store(pass, Ordering::Relaxed);
    look_for(Looks::Wait, pass == 0);
    let [ran, took] = LAST.each_ref().map(|part| part.load(Ordering::Relaxed));
    (ran, took)
}

/// Discards the measurements of waits. Called when a window opens, and when another thread runs the steps, because that
/// thread may wait in a different way (spin or sleep).
fn forget_waits() {
    for part in [&RAN_IN_WAITS, &WAITED, &LAST[0], &LAST[1], &PASS] {
        part.store(0, Ordering::Relaxed);
    }
    of_waits();
}

/// Measures the resources that iteration `n` used. Called when the calling thread has ended the iteration.
pub(crate) fn iteration_ends(n: u64) {
    let Some(ran) = system::own_processor_time() else {
        return;
    };
    let at = clock::ticks();
    let took = clock::ns(at.saturating_sub(ENDED.load(Ordering::Relaxed)));
    ENDED.store(at, Ordering::Relaxed);
    if THREAD.load(Ordering::Relaxed) != this_thread() {
        if let Some(now) = system::used(ran) {
            take(now, delayed());
            forget_waits();
        }
        return;
    }
    let (ran_in_waits, waits_took) = of_waits();
    let waits = (Used::Waits, ran_in_waits, waits_took.div_ceil(1000));
    let own = ran.saturating_sub(SO_FAR[0].load(Ordering::Relaxed));
    let since = SINCE.load(Ordering::Relaxed);
    if is_alike(own, took, since, TOOK.load(Ordering::Relaxed)) {
        SO_FAR[0].store(ran, Ordering::Relaxed);
        SINCE.store(since + 1, Ordering::Relaxed);
        LATEST.store(n, Ordering::Relaxed);
        return write(n, &[(Used::Ran, own, 0), waits]);
    }
    let Some(now) = system::used(ran) else {
        return;
    };
    TOOK.store(took, Ordering::Relaxed);
    write(n, &taken(now));
    write(n, &[waits]);
}

/// Returns true if an iteration is similar to the one that was fully measured last, so that it needs no full
/// measurement. The iteration took `took` nanoseconds, and its thread was on a processor for `ran` of them. `since` is
/// the number of iterations since the last full measurement. `usual` is the duration, in nanoseconds, of the
/// iteration that was fully measured last.
const fn is_alike(ran: u64, took: u64, since: u64, usual: u64) -> bool {
    since + 1 < MEASURE_EVERY
        && took.saturating_sub(ran) <= took / OFF_DIVISOR
        && took <= usual.saturating_add(usual / LONGER_DIVISOR)
}

/// Returns the resources that the calling thread has used since its last full measurement, and begins a new
/// measurement. The processor time is counted only from the latest iteration's end, because it is measured in each
/// iteration. Each entry has a kind of resource, nanoseconds, and a count.
fn taken(now: ThreadUsage) -> [(Used, u64, u64); 4] {
    let before = SO_FAR.each_ref().map(|part| part.load(Ordering::Relaxed));
    let [_, _, left, preempted, _, _, delayed] = before;
    let delayed = (delayed != UNKNOWN).then_some(delayed);
    // A thread that has not left its processor has hardly waited for one, so its waiting time is not read. After a sleep
    // it is read, so that this wait does not count for the next iteration in which the thread is preempted.
    let waited = match now.preempted > preempted || now.left > left {
        true => self::delayed().or(delayed),
        false => delayed,
    };
    take(now, waited);
    between(before, parts(now, waited))
}

/// Returns the resources that a thread has used between two measurements. Each entry has a kind of resource, nanoseconds,
/// and a count.
fn between(before: [u64; PARTS], now: [u64; PARTS]) -> [(Used, u64, u64); 4] {
    let [ran, in_kernel, left, preempted, faults, disk, _] =
        core::array::from_fn(|part| now[part].saturating_sub(before[part]));
    let delayed = |parts: [u64; PARTS]| Some(parts[PARTS - 1]).filter(|time| *time != UNKNOWN);
    let lacked = match preempted {
        0 => 0,
        _ => difference(delayed(before), delayed(now)),
    };
    [
        (Used::Ran, ran, left),
        (Used::Kernel, in_kernel, faults),
        (Used::Delayed, lacked, preempted),
        (Used::Disk, 0, disk),
    ]
}

/// Returns what the calling thread has used since it began: its id, and the values that are measured. Returns `None` if
/// the kernel does not report them.
pub(crate) fn so_far() -> Option<(u64, [u64; PARTS])> {
    let used = system::own_processor_time().and_then(system::used)?;
    Some((this_thread(), parts(used, delayed())))
}

/// Writes the resources that iteration `n` used, which began and ended with these values of [`so_far`]. Writes nothing
/// if they are not known, or are those of two threads.
pub(crate) fn write_between(
    n: u64,
    before: Option<(u64, [u64; PARTS])>,
    now: Option<(u64, [u64; PARTS])>,
) {
    if let (Some((began, before)), Some((ended, now))) = (before, now)
        && began == ended
    {
        write(n, &between(before, now));
    }
}

/// Returns the difference of two values of the time in the run queue. Returns 0 if one of them is not known: the total
/// since the thread began must not count as the time of one iteration.
fn difference(before: Option<u64>, now: Option<u64>) -> u64 {
    before
        .zip(now)
        .map_or(0, |(before, now)| now.saturating_sub(before))
}

/// Writes the resources that iteration `n` used, as events.
fn write(n: u64, used: &[(Used, u64, u64)]) {
    let at = clock::ticks();
    for &(what, ns, count) in used {
        if what != Used::Ran && ns == 0 && count == 0 {
            continue;
        }
        let what = What::Used {
            what: Some(what),
            iteration: n as u32,
            count: u32::try_from(count).unwrap_or(u32::MAX),
        };
        writers::write_aside(&Event::new(at, ns, what));
    }
}

/// Stores the calling thread's resource usage. The next measurement reports the difference from these values.
/// `delayed` is the time in the run queue; `None` if it is not known.
fn take(used: ThreadUsage, delayed: Option<u64>) {
    THREAD.store(this_thread(), Ordering::Relaxed);
    SINCE.store(0, Ordering::Relaxed);
    for (place, part) in SO_FAR.iter().zip(parts(used, delayed)) {
        place.store(part, Ordering::Relaxed);
    }
}

/// Returns the measured values in the order of [`SO_FAR`].
fn parts(used: ThreadUsage, delayed: Option<u64>) -> [u64; PARTS] {
    [
        used.ran,
        used.in_kernel,
        used.left,
        used.preempted,
        used.faults,
        used.disk_faults,
        delayed.unwrap_or(UNKNOWN),
    ]
}

/// Returns the calling thread's id, without a system call if it is already known.
pub(crate) fn this_thread() -> u64 {
    let number = thread::current().map_or_else(ids::thread, ThreadRecord::number);
    u64::from(number.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates an iteration. If `ran` is given and a wait is to be measured, the iteration waits for 100 ns and
    /// spends `ran` ns of them on a processor. Returns true if a wait was to be measured, and the latest measurement of
    /// waits.
    fn iteration(ran: Option<u64>) -> (bool, (u64, u64)) {
        let is_asked = looks_for(Looks::Wait);
        if let Some(ran) = ran.filter(|_| is_asked) {
            RAN_IN_WAITS.store(ran, Ordering::Relaxed);
            WAITED.store(100, Ordering::Relaxed);
        }
        (is_asked, of_waits())
    }

    #[test]
    fn one_iteration_of_eight_is_asked_about_and_the_others_are_as_it_was() {
        forget_waits();
        assert_eq!(iteration(None), (true, (0, 0)));
        assert_eq!(iteration(Some(10)), (true, (10, 100)));
        for _ in 1..MEASURE_EVERY {
            assert_eq!(iteration(Some(99)), (false, (10, 100)));
        }
        assert_eq!(iteration(None), (true, (10, 100)));
        assert_eq!(iteration(Some(20)), (true, (20, 100)));
        forget_waits();
        assert_eq!(iteration(None), (true, (0, 0)));
    }

    #[test]
    fn an_iteration_that_is_unlike_others_is_asked_about_whole() {
        for (since, ran, took, wanted) in [
            (0, 1000, 1000, true),
            (0, 990, 1000, true),
            (0, 1100, 1100, true),
            (6, 500, 500, true),
            (0, 980, 1000, false),
            (0, 1200, 1200, false),
            (7, 1000, 1000, false),
        ] {
            let is_so = is_alike(ran, took, since, 1000);
            assert_eq!(is_so, wanted, "{since}, {ran} of {took}");
        }
    }

    #[test]
    fn a_time_that_was_not_known_before_is_not_counted() {
        assert_eq!(difference(Some(5), Some(7)), 2);
        assert_eq!(difference(None, Some(7)), 0);
        assert_eq!(difference(None, None), 0);
    }

    #[test]
    fn how_long_a_thread_has_waited_is_its_own() {
        assert_eq!(parse(b"123 456 7\n"), Some(456));
        assert_eq!(parse(b"123"), None);
        assert_eq!(parse(b""), None);
        let first = delayed().unwrap();
        assert!(delayed().unwrap() >= first);
        let ours = FILE.lock().as_ref().map(|(thread, _)| *thread);
        assert_eq!(ours, Some(this_thread()));
        let others = std::thread::spawn(|| delayed().map(|_| this_thread()));
        let theirs = others.join().unwrap();
        assert_eq!(FILE.lock().as_ref().map(|(thread, _)| *thread), theirs);
        assert_ne!(ours, theirs);
        window_closes();
        assert!(FILE.lock().is_none());
    }
}
