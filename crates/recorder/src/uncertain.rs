//! Iterations by a rule that is not relied on yet. A span of time is recorded meanwhile in place of iterations. Once the
//! rule is relied on, the iterations that began in this span replace it.
//!
//! All functions are called with the lock on the session's state (the state of steps and windows) held.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Event, What};

use super::flight::MAX_STEPS;
use super::usage::PARTS;
use super::{clock, flight, pace, reuse, space, times, usage, writers};

/// The minimum number of iterations in a row, and their minimum total duration in nanoseconds, that replace a span of time
/// when the process ends, although it is not certain that they are iterations. A single step rarely has this many waits
/// and lasts this long.
const PROBABLE_STEPS: u64 = 32;
const PROBABLE_NS: u64 = 3_000_000_000;

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "they began before the child's spans")]
    #[together(tables)]
    static SEEN: UncertainIterations = UncertainIterations::new();
}

/// The beginnings of the latest iterations by a rule of which it is not certain yet that it counts iterations, as a ring.
struct UncertainIterations {
    /// The place of the rule.
    rule: AtomicU64,
    /// The number of iterations in a row by this rule so far.
    count: AtomicU64,
    /// The number of the latest iteration.
    latest: AtomicU64,
    /// The tick when the first of the iterations in a row began.
    since: AtomicU64,
    starts: [Start; MAX_STEPS],
}

/// The beginning of an iteration: the tick, the calling thread (0 if its usage is not known), and what this thread had
/// used by then.
struct Start {
    tick: AtomicU64,
    thread: AtomicU64,
    used: [AtomicU64; PARTS],
}

/// The values of a [`Start`].
#[derive(Clone, Copy)]
struct Began {
    tick: u64,
    used: Option<(u64, [u64; PARTS])>,
}

impl Began {
    fn now() -> Self {
        Self {
            tick: clock::ticks(),
            used: usage::so_far(),
        }
    }
}

impl Start {
    const fn new() -> Self {
        Self {
            tick: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            used: [const { AtomicU64::new(0) }; PARTS],
        }
    }

    fn set(&self, began: Began) {
        let (thread, used) = began.used.unwrap_or_default();
        self.tick.store(began.tick, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
        for (place, part) in self.used.iter().zip(used) {
            place.store(part, Ordering::Relaxed);
        }
    }

    fn get(&self) -> Began {
        let thread = self.thread.load(Ordering::Relaxed);
        let used = self
            .used
            .each_ref()
            .map(|part| part.load(Ordering::Relaxed));
        Began {
            tick: self.tick.load(Ordering::Relaxed),
            used: (thread != 0).then_some((thread, used)),
        }
    }
}

impl UncertainIterations {
    const fn new() -> Self {
        Self {
            rule: AtomicU64::new(0),
            count: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            since: AtomicU64::new(0),
            starts: [const { Start::new() }; MAX_STEPS],
        }
    }

    /// Returns true if iteration `n` by `rule` follows the latest iteration.
    fn is_followed_by(&self, n: u64, rule: u64) -> bool {
        self.rule.load(Ordering::Relaxed) == rule
            && self.latest.load(Ordering::Relaxed).checked_add(1) == Some(n)
    }

    /// Adds iteration `n`, which begins now. Forgets the earlier ones if they are by another rule.
    fn add(&self, n: u64, rule: u64) {
        let began = Began::now();
        let mut count = self.count.load(Ordering::Relaxed);
        if !self.is_followed_by(n, rule) {
            count = 0;
            self.since.store(began.tick, Ordering::Relaxed);
        }
        self.starts[(count % MAX_STEPS as u64) as usize].set(began);
        self.latest.store(n, Ordering::Relaxed);
        self.rule.store(rule, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
    }

    /// Returns the numbers and the beginnings of the latest iterations in a row, the oldest first.
    fn all(&self) -> impl DoubleEndedIterator<Item = (u64, Began)> + Clone {
        let count = self.count.load(Ordering::Relaxed);
        let next = self.latest.load(Ordering::Relaxed) + 1;
        let kept = count.min(MAX_STEPS as u64);
        (count - kept..count).map(move |place| {
            let start = &self.starts[(place % MAX_STEPS as u64) as usize];
            (next - (count - place), start.get())
        })
    }

    /// Returns true if there are enough iterations, over enough time, that they are unlikely to be parts of longer ones.
    fn are_probable(&self) -> bool {
        let latest = self.all().next_back().map_or(0, |(_, began)| began.tick);
        let lasted = latest.saturating_sub(self.since.load(Ordering::Relaxed));
        self.count.load(Ordering::Relaxed) > PROBABLE_STEPS && clock::ns(lasted) >= PROBABLE_NS
    }
}

/// Called at the beginning of iteration `n` while a span of time is recorded, because it is not certain yet that the
/// rule with the number `rule` counts iterations. If it becomes certain, the iterations replace the span.
pub fn step_is_seen(n: u64, rule: u64) {
    if reuse::is_on() {
        SEEN.add(n, rule);
    }
}

/// Replaces the kept spans of time by the iterations in them, because it is certain now that `rule` counts iterations,
/// and iteration `n` begins. The latest span began at tick `since`. If no iterations of `rule` are known that come just
/// before `n`, drops the spans.
pub(crate) fn replace_span(since: u64, n: u64, rule: Option<u64>) {
    let follows = reuse::is_on() && rule.is_some_and(|rule| SEEN.is_followed_by(n, rule));
    let latest = follows.then(|| (n, Began::now()));
    let begun = SEEN.all().chain(latest).filter(|_| follows);
    if !keep(since, begun) {
        flight::forget_span();
    }
}

/// Replaces the kept spans of time by the iterations in them, because the process ends and they are probably iterations.
/// The latest span began at tick `since`. Returns false and changes nothing if that is not so.
pub(crate) fn probable_steps_replace_span(since: u64) -> bool {
    SEEN.are_probable() && keep(since, SEEN.all())
}

/// Replaces the kept spans of time by iterations in them. The latest span began at tick `since`. `begun` has the numbers
/// and beginnings of iterations in a row, of which the last one has not ended. Returns false and changes nothing if none
/// of them can be kept.
fn keep(since: u64, begun: impl Iterator<Item = (u64, Began)> + Clone) -> bool {
    let first = flight::kept_since(since);
    let begun = begun.filter(|(_, start)| start.tick >= first);
    let ended = begun.clone().zip(begun.skip(1));
    let known = ended.clone().count();
    let count = known.min(flight::room());
    let Some(header) = space::header().filter(|_| count > 0) else {
        return false;
    };
    let latest = ended.skip(known - count).map(|((n, start), (_, end))| {
        let took = end.tick.saturating_sub(start.tick);
        (n, start, end, took)
    });
    for (n, start, end, took) in latest.clone() {
        header.add(Counter::Iterations, 1);
        pace::add(took);
        times::add(n, took);
        let excluded = false;
        writers::write_aside(&Event::new(
            start.tick,
            took,
            What::Iteration { n, excluded },
        ));
        usage::write_between(n, start.used, end.used);
    }
    flight::replace_span(
        count,
        latest.map(|(n, start, _, took)| (n, start.tick, took)),
    );
    true
}
