//! A thread's use of the GIL: the current wait or hold, and totals.
//!
//! A thread holds at most one GIL, because it releases one interpreter's GIL before it takes
//! another's.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::time::now;
use tllmprof_capture::marks::{RegisteredName, Started};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::watch::{self, Cause};

/// The names of the NVTX ranges for waits for the GIL and holds of it.
struct GilRangeNames {
    wait: RegisteredName,
    hold: RegisteredName,
}

lifecycle::global! {
    #[fork(keep = "a name is registered anew in a child")]
    #[restart(keep)]
    static NAMES: OnceBox<Option<GilRangeNames>> = OnceBox::new();
    /// The shortest wait for the GIL or hold of it that is recorded, in ns.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static SHORTEST: AtomicU64 = AtomicU64::new(0);
}

/// Returns true if [`begin`] has run, even if it registered no names because no tool receives NVTX ranges.
pub(crate) fn have_names() -> bool {
    NAMES.get().is_some()
}

/// Registers the names of the NVTX ranges for waits and holds. The hooks of `pthread_cond_*` must not call this
/// function: it loads the tool (a library) that receives the NVTX ranges, and the tool's code must not run while a
/// thread holds the GIL's mutex.
pub(crate) fn begin() {
    NAMES.get_or_init(|| {
        Box::new(
            RegisteredName::new("GIL wait")
                .zip(RegisteredName::new("GIL hold"))
                .map(|(wait, hold)| GilRangeNames { wait, hold }),
        )
    });
    if let Some(settings) = tllmprof_session::activity::settings() {
        SHORTEST.store(settings.gil_min_us.saturating_mul(1000), Ordering::Relaxed);
    }
}

/// Returns the names of the NVTX ranges; `None` if no tool receives NVTX ranges.
fn names() -> Option<&'static GilRangeNames> {
    NAMES.get().and_then(Option::as_ref)
}

/// The number of events, with their total duration and the longest duration in ns.
pub(crate) struct EventTotal {
    count: AtomicU64,
    time: AtomicU64,
    longest: AtomicU64,
}

impl EventTotal {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            time: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Adds an event. Only the thread that owns this total may call this function.
    #[inline]
    fn add(&self, time: u64) {
        let add =
            |to: &AtomicU64, value| to.store(to.load(Ordering::Relaxed) + value, Ordering::Relaxed);
        add(&self.count, 1);
        add(&self.time, time);
        if time > self.longest() {
            self.longest.store(time, Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        for part in [&self.count, &self.time, &self.longest] {
            part.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn time(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    pub(crate) fn longest(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }
}

/// A thread's use of the GIL. Other threads may read only the totals and `holds_since`.
pub(crate) struct Holds {
    /// The start of the thread's current wait for the GIL, in ns; 0 if the thread does not wait.
    waits_since: Cell<u64>,
    /// The start of the current hold in ns; 0 if the thread does not hold the GIL.
    holds_since: AtomicU64,
    /// The start of the current wait in ticks, the record's unit of time; 0 if nothing is recorded. `hold_ticks` is
    /// the same for the current hold.
    wait_ticks: Cell<u64>,
    hold_ticks: Cell<u64>,
    wait: Cell<Option<Started>>,
    hold: Cell<Option<Started>>,
    pub waits: EventTotal,
    pub holds: EventTotal,
    /// Waits of this thread after it was forced to drop the GIL. Each wait lasts until another thread has taken the
    /// GIL.
    pub forced: EventTotal,
}

/// Returns the current time in ticks, the record's unit of time, or 0 if nothing is recorded.
pub(crate) fn ticks() -> u64 {
    if recorder::is_keeping() {
        recorder::ticks()
    } else {
        0
    }
}

/// Records a wait or hold that began at tick `since` and took `took` ns, unless `took` is less than [`SHORTEST`].
fn record_if_long(since: &Cell<u64>, took: u64, what: What) {
    let since = since.replace(0);
    if since != 0 && recorder::is_keeping() && took >= SHORTEST.load(Ordering::Relaxed) {
        recorder::event(since, recorder::ticks().saturating_sub(since), what);
    }
}

impl Holds {
    pub(crate) const fn new() -> Self {
        Self {
            waits_since: Cell::new(0),
            holds_since: AtomicU64::new(0),
            wait_ticks: Cell::new(0),
            hold_ticks: Cell::new(0),
            wait: Cell::new(None),
            hold: Cell::new(None),
            waits: EventTotal::new(),
            holds: EventTotal::new(),
            forced: EventTotal::new(),
        }
    }

    /// Records that the thread waits for GIL number `gil`, which another thread holds. CPython waits with a timeout, so
    /// this function is called repeatedly during one wait.
    pub(crate) fn begins_to_wait(&self, gil: u64) {
        if self.waits_since.get() == 0 {
            self.waits_since.set(now());
            self.wait_ticks.set(ticks());
            self.wait.set(names().map(|names| names.wait.start(gil)));
        }
    }

    /// Records that the thread has taken GIL number `gil`.
    pub(crate) fn takes(&self, gil: u64) {
        // This ends the hold of the thread's last GIL if that GIL was destroyed without being dropped.
        self.drops();
        let now = now();
        let waited = self.waits_since.replace(0);
        if waited != 0 {
            let waited = now.saturating_sub(waited);
            self.waits.add(waited);
            watch::add_ns(Cause::Gil, waited);
            record_if_long(&self.wait_ticks, waited, What::GilWait);
            self.wait.set(None);
        }
        self.holds_since.store(now, Ordering::Relaxed);
        self.hold_ticks.set(ticks());
        self.hold.set(names().map(|names| names.hold.start(gil)));
    }

    /// Records that the thread has dropped the GIL.
    pub(crate) fn drops(&self) {
        let held = self.holds_since.load(Ordering::Relaxed);
        if held != 0 {
            self.holds_since.store(0, Ordering::Relaxed);
            let held = now().saturating_sub(held);
            self.holds.add(held);
            record_if_long(&self.hold_ticks, held, What::GilHold);
            self.hold.set(None);
        }
    }

    /// Records that the thread was forced to drop the GIL, and that another thread has taken it. `time` is the time in
    /// ns that the thread waited for the other thread. The wait began at tick `since_ticks` (0 if nothing is recorded).
    pub(crate) fn was_forced(&self, time: u64, since_ticks: u64) {
        self.forced.add(time);
        record_if_long(&Cell::new(since_ticks), time, What::GilForced);
    }

    /// Starts the counting for this thread: resets its totals. If the thread holds the GIL now, only the rest of this
    /// hold counts. Only the thread itself may call this function.
    pub(crate) fn begin(&self, gil: u64) {
        self.clear();
        if self.holds_since.load(Ordering::Relaxed) != 0 {
            self.holds_since.store(0, Ordering::Relaxed);
            self.takes(gil);
        }
    }

    /// Returns the start of the current hold in ns, or `None` if the thread does not hold the GIL.
    pub(crate) fn holds_since(&self) -> Option<u64> {
        Some(self.holds_since.load(Ordering::Relaxed)).filter(|since| *since != 0)
    }

    /// Ends the current hold and discards the current wait, because the thread has ended. Keeps the totals, but not the
    /// longest wait: another thread may take over this state, and would be reported as the thread that waited.
    pub(crate) fn leave(&self) {
        self.drops();
        self.waits_since.set(0);
        self.wait.set(None);
        self.waits.longest.store(0, Ordering::Relaxed);
    }

    /// Forgets the current wait or hold without adding it to the totals. Called if the library was detached during the
    /// wait or hold, so that its end was not reported.
    pub(crate) fn forget(&self) {
        self.holds_since.store(0, Ordering::Relaxed);
        self.waits_since.set(0);
        self.hold.set(None);
        self.wait.set(None);
    }

    /// Resets the thread's GIL state and totals in the child of a fork, in which Python creates a new GIL.
    pub(crate) fn in_child(&self, _: &OnlyThread) {
        self.clear();
        self.waits_since.set(0);
        self.holds_since.store(0, Ordering::Relaxed);
        for range in [&self.wait, &self.hold] {
            // `forget` drops the range without ending it, because the range belongs to the parent
            // process.
            if let Some(range) = range.take() {
                range.forget();
            }
        }
    }

    /// Resets the GIL state of the thread at the start of a test, because the test's thread may
    /// have taken over the state of an ended thread.
    #[cfg(test)]
    pub(crate) fn begin_anew(&self) {
        self.leave();
        self.clear();
    }

    fn clear(&self) {
        for total in [&self.waits, &self.holds, &self.forced] {
            total.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::thread::sleep;

    use super::*;

    const PAUSE: Duration = Duration::from_millis(2);
    const PAUSED: u64 = 2_000_000;

    #[test]
    fn a_wait_ends_where_the_hold_begins() {
        let thread = Holds::new();
        assert!(thread.holds_since().is_none());
        thread.begins_to_wait(0);
        sleep(PAUSE);
        thread.begins_to_wait(0); // the thread woke up, but another one still holds the GIL
        thread.takes(0);
        assert_eq!(thread.waits.count(), 1);
        assert!(thread.waits.time() >= PAUSED);
        assert_eq!(thread.waits.longest(), thread.waits.time());
        assert_eq!(thread.holds.count(), 0);
        sleep(PAUSE);
        thread.drops();
        thread.drops();
        assert_eq!(thread.holds.count(), 1);
        assert!(thread.holds.time() >= PAUSED);
    }

    #[test]
    fn a_gil_that_was_free_is_not_waited_for() {
        let thread = Holds::new();
        thread.takes(0);
        thread.takes(1); // the first GIL was destroyed without being dropped
        thread.drops();
        assert_eq!((thread.waits.count(), thread.holds.count()), (0, 2));
    }

    #[test]
    fn counting_begins_within_a_hold() {
        let thread = Holds::new();
        thread.takes(0);
        thread.drops();
        thread.was_forced(5, 0);
        thread.takes(0);
        let before = thread.holds_since();
        sleep(PAUSE);
        thread.begin(0);
        assert_eq!((thread.holds.count(), thread.forced.count()), (0, 0));
        assert!(thread.holds_since() > before);
        let idle = Holds::new();
        idle.begin(0);
        assert!(idle.holds_since().is_none());
    }

    #[test]
    fn the_place_of_a_thread_that_ended_keeps_its_totals() {
        let thread = Holds::new();
        thread.begins_to_wait(0);
        sleep(PAUSE);
        thread.takes(0);
        thread.begins_to_wait(0);
        thread.was_forced(7, 0);
        thread.leave();
        assert_eq!((thread.waits.count(), thread.holds.count()), (1, 1));
        assert!(thread.waits.time() >= PAUSED);
        assert_eq!(thread.waits.longest(), 0);
        assert_eq!((thread.forced.count(), thread.forced.time()), (1, 7));
        // The next thread that takes over this state does not continue the second wait of the thread that ended. So the
        // number of waits stays 1 when this thread takes the GIL.
        thread.takes(0);
        assert_eq!(thread.waits.count(), 1);
    }

    #[test]
    fn the_child_of_a_fork_counts_anew() {
        let thread = Holds::new();
        thread.takes(0);
        thread.drops();
        thread.takes(0);
        thread.begins_to_wait(0);
        // SAFETY: no other thread has a reference to the objects of this test.
        thread.in_child(&unsafe { OnlyThread::new() });
        assert_eq!((thread.waits.count(), thread.holds.count()), (0, 0));
        assert!(thread.holds_since().is_none());
        thread.takes(0);
        assert_eq!(thread.waits.count(), 0);
    }
}
