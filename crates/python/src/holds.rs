//! A thread's use of the GIL: when it waits for one, when it holds one, and the totals.
//!
//! A thread has at most one GIL: it releases one interpreter's before it takes another's.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::time::now;
use tllmprof_capture::marks::{Name, Started};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::watch::{self, Cause};

/// The names of the ranges.
struct GilRangeNames {
    wait: Name,
    hold: Name,
}

lifecycle::global! {
    #[fork(keep = "a name is registered anew in a child")]
    #[restart(keep)]
    static NAMES: OnceBox<Option<GilRangeNames>> = OnceBox::new();
    /// Minimum duration of a wait or a hold for the record, in nanoseconds.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static SHORTEST: AtomicU64 = AtomicU64::new(0);
}

/// Returns true if [`begin`] has been called.
pub fn have_names() -> bool {
    NAMES.get().is_some()
}

/// Registers the names of the ranges. A hook must not call it, as it loads the tool that records ranges.
pub fn begin() {
    NAMES.get_or_init(|| {
        Box::new(
            Name::new("GIL wait")
                .zip(Name::new("GIL hold"))
                .map(|(wait, hold)| GilRangeNames { wait, hold }),
        )
    });
    if let Some(settings) = tllmprof_session::activity::settings() {
        SHORTEST.store(settings.gil_min_us.saturating_mul(1000), Ordering::Relaxed);
    }
}

/// Returns the names, if ranges are wanted.
fn names() -> Option<&'static GilRangeNames> {
    NAMES.get().and_then(Option::as_ref)
}

/// The number and the durations of events of one kind, in nanoseconds.
pub struct EventTotal {
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

    /// Adds an event. Only the thread that owns the total may call it.
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

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn time(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    pub fn longest(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }
}

/// A thread's use of the GIL. Only the thread itself uses the fields that are not totals.
pub struct Holds {
    /// Start of the wait under way; 0 for none.
    waits_since: Cell<u64>,
    /// Start of the hold under way; 0 for none.
    holds_since: AtomicU64,
    /// The same moments in the record's ticks; 0 if nothing is recorded.
    wait_ticks: Cell<u64>,
    hold_ticks: Cell<u64>,
    wait: Cell<Option<Started>>,
    hold: Cell<Option<Started>>,
    pub waits: EventTotal,
    pub holds: EventTotal,
    /// Waits of a thread that was forced to drop the GIL, until another has taken it.
    pub forced: EventTotal,
}

/// Returns the current tick of the record if it will be needed, otherwise 0.
pub fn ticks() -> u64 {
    if recorder::is_keeping() {
        recorder::ticks()
    } else {
        0
    }
}

/// Records an event that began at `since` and took `took` nanoseconds, unless it is too short.
fn record_if_long(since: &Cell<u64>, took: u64, what: What) {
    let since = since.replace(0);
    if since != 0 && recorder::is_keeping() && took >= SHORTEST.load(Ordering::Relaxed) {
        recorder::event(since, recorder::ticks().saturating_sub(since), what);
    }
}

impl Holds {
    pub const fn new() -> Self {
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

    /// Notes that the thread waits for GIL number `gil`, which another one holds. It is called repeatedly
    /// during the wait.
    pub fn begins_to_wait(&self, gil: u64) {
        if self.waits_since.get() == 0 {
            self.waits_since.set(now());
            self.wait_ticks.set(ticks());
            self.wait.set(names().map(|names| names.wait.start(gil)));
        }
    }

    /// Notes that the thread has taken the GIL.
    pub fn takes(&self, gil: u64) {
        // A hold may be left over from a GIL that ended without being dropped.
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

    /// Notes that the thread has dropped the GIL.
    pub fn drops(&self) {
        let held = self.holds_since.load(Ordering::Relaxed);
        if held != 0 {
            self.holds_since.store(0, Ordering::Relaxed);
            let held = now().saturating_sub(held);
            self.holds.add(held);
            record_if_long(&self.hold_ticks, held, What::GilHold);
            self.hold.set(None);
        }
    }

    /// Notes that the thread was forced to drop the GIL, and that another has taken it since.
    pub fn was_forced(&self, time: u64, since_ticks: u64) {
        self.forced.add(time);
        record_if_long(&Cell::new(since_ticks), time, What::GilForced);
    }

    /// Starts counting. A hold that is under way begins now. Only the thread itself may call it.
    pub fn begin(&self, gil: u64) {
        self.clear();
        if self.holds_since.load(Ordering::Relaxed) != 0 {
            self.holds_since.store(0, Ordering::Relaxed);
            self.takes(gil);
        }
    }

    /// Returns the start of the hold under way.
    pub fn holds_since(&self) -> Option<u64> {
        Some(self.holds_since.load(Ordering::Relaxed)).filter(|since| *since != 0)
    }

    /// Ends what is under way, as the thread has ended. The totals are kept, except the longest wait: the
    /// next thread with this slot must not be named for it.
    pub fn leave(&self) {
        self.drops();
        self.waits_since.set(0);
        self.wait.set(None);
        self.waits.longest.store(0, Ordering::Relaxed);
    }

    /// Forgets what is under way, as its end will not be seen.
    pub fn forget(&self) {
        self.holds_since.store(0, Ordering::Relaxed);
        self.waits_since.set(0);
        self.hold.set(None);
        self.wait.set(None);
    }

    /// Resets everything in the child of a fork, where Python makes a new GIL.
    pub fn in_child(&self, _: &OnlyThread) {
        self.clear();
        self.waits_since.set(0);
        self.holds_since.store(0, Ordering::Relaxed);
        for range in [&self.wait, &self.hold] {
            // The range is dropped without being ended.
            if let Some(range) = range.take() {
                range.forget();
            }
        }
    }

    /// Resets everything for a test, whose thread may reuse another's slot.
    #[cfg(test)]
    pub fn begin_anew(&self) {
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
        thread.begins_to_wait(0); // it was woken, but another thread still has it
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
        thread.takes(1); // the first ended without being dropped
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
        // The next thread's wait does not begin there.
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
        // SAFETY: no other thread has a reference to what this one made.
        thread.in_child(&unsafe { OnlyThread::new() });
        assert_eq!((thread.waits.count(), thread.holds.count()), (0, 0));
        assert!(thread.holds_since().is_none());
        thread.takes(0);
        assert_eq!(thread.waits.count(), 0);
    }
}
