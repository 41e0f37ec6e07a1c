//! What a thread has to do with the GIL: when it waits for one, when it has one, and the totals.
//!
//! A thread has one GIL at a time: it gives one interpreter's back before it takes another's.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::time::now;
use tllmprof_capture::marks::{Name, Started};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::watch::{self, Cause};

/// What the ranges are called.
struct Names {
    wait: Name,
    hold: Name,
}

lifecycle::global! {
    #[fork(keep = "a name is registered anew in a child")]
    #[restart(keep)]
    static NAMES: OnceBox<Option<Names>> = OnceBox::new();
    /// How long a wait or a hold must last for the record to keep it, in nanoseconds.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static SHORTEST: AtomicU64 = AtomicU64::new(0);
}

/// Whether [`begin`] has been called.
pub fn have_names() -> bool {
    NAMES.get().is_some()
}

/// Ranges begin. Not for a hook: it loads the tool that listens.
pub fn begin() {
    NAMES.get_or_init(|| {
        Box::new(
            Name::new("GIL wait")
                .zip(Name::new("GIL hold"))
                .map(|(wait, hold)| Names { wait, hold }),
        )
    });
    if let Some(settings) = tllmprof_session::activity::settings() {
        SHORTEST.store(settings.gil_min_us.saturating_mul(1000), Ordering::Relaxed);
    }
}

/// The names, if somebody listens.
fn names() -> Option<&'static Names> {
    NAMES.get().and_then(Option::as_ref)
}

/// How often something has happened, and for how long. Times in nanoseconds.
pub struct Total {
    count: AtomicU64,
    time: AtomicU64,
    longest: AtomicU64,
}

impl Total {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            time: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Adds one. By the thread that it belongs to, alone.
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

/// A thread and the GIL. What is no total is the thread's own.
pub struct Holds {
    /// When the wait began that is under way; 0 for none.
    waits_since: Cell<u64>,
    /// When the hold began that is under way; 0 for none.
    holds_since: AtomicU64,
    /// The same moments in the record's ticks; 0 where nothing is recorded.
    wait_ticks: Cell<u64>,
    hold_ticks: Cell<u64>,
    wait: Cell<Option<Started>>,
    hold: Cell<Option<Started>>,
    pub waits: Total,
    pub holds: Total,
    /// Waits of a thread that was made to drop the GIL, until another has taken it.
    pub forced: Total,
}

/// Now, in the record's ticks, if they will be wanted.
pub fn ticks() -> u64 {
    if recorder::is_keeping() {
        recorder::ticks()
    } else {
        0
    }
}

/// Has the record keep what began then and took so many nanoseconds, unless that is too short.
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
            waits: Total::new(),
            holds: Total::new(),
            forced: Total::new(),
        }
    }

    /// The thread wants GIL number `gil`, which another one has. Called again as long as it waits.
    pub fn begins_to_wait(&self, gil: u64) {
        if self.waits_since.get() == 0 {
            self.waits_since.set(now());
            self.wait_ticks.set(ticks());
            self.wait.set(names().map(|names| names.wait.start(gil)));
        }
    }

    /// It has it now.
    pub fn takes(&self, gil: u64) {
        // Left over from a GIL that went without being dropped.
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

    /// It gives it back.
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

    /// It was made to give it back, and another has it since.
    pub fn was_forced(&self, time: u64, since_ticks: u64) {
        self.forced.add(time);
        record_if_long(&Cell::new(since_ticks), time, What::GilForced);
    }

    /// Counts from here on, a hold that is under way as one that begins. By its own thread.
    pub fn begin(&self, gil: u64) {
        self.clear();
        if self.holds_since.load(Ordering::Relaxed) != 0 {
            self.holds_since.store(0, Ordering::Relaxed);
            self.takes(gil);
        }
    }

    /// When the hold began that is under way.
    pub fn holds_since(&self) -> Option<u64> {
        Some(self.holds_since.load(Ordering::Relaxed)).filter(|since| *since != 0)
    }

    /// The thread has ended: what is under way ends here. The totals stay, without the longest
    /// wait, which another thread in this place is not to be named for.
    pub fn leave(&self) {
        self.drops();
        self.waits_since.set(0);
        self.wait.set(None);
        self.waits.longest.store(0, Ordering::Relaxed);
    }

    /// What comes of what is under way is not seen.
    pub fn forget(&self) {
        self.holds_since.store(0, Ordering::Relaxed);
        self.waits_since.set(0);
        self.hold.set(None);
        self.wait.set(None);
    }

    /// The process is the child of a fork, where Python takes a new GIL.
    pub fn in_child(&self, _: &OnlyThread) {
        self.clear();
        self.waits_since.set(0);
        self.holds_since.store(0, Ordering::Relaxed);
        for range in [&self.wait, &self.hold] {
            // The range is not ended, whatever it was in the middle of.
            if let Some(range) = range.take() {
                range.forget();
            }
        }
    }

    /// For a test, whose thread may have another's place: as of a thread that has done nothing.
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
        thread.begins_to_wait(0); // it was woken, and another has it still
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
        thread.takes(1); // the first went without being dropped
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
        // The next thread does not wait since then.
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
