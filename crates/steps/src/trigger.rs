//! Detects the iterations after which a trigger opens a window.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::time::Instant;

use tllmprof_config::Trigger;
use tllmprof_config::condition::{BatchClass, BatchFacts, IterationDurations};

/// The number of latest iterations with similar batches whose durations are stored.
const KEPT: usize = 64;
/// The smallest number of stored durations from which a median is computed.
const NEEDED: usize = 16;
/// The unit of the stored durations, in nanoseconds.
const UNIT_NS: u64 = 100;

/// The durations of the latest iterations with similar batches.
#[derive(Clone, Debug)]
struct Alike {
    took: [u32; KEPT],
    count: usize,
}

impl Alike {
    const NONE: Self = Self {
        took: [0; KEPT],
        count: 0,
    };

    fn add(&mut self, ns: u64) {
        self.took[self.count % KEPT] = u32::try_from(ns / UNIT_NS).unwrap_or(u32::MAX);
        self.count += 1;
    }

    /// Returns the median of the stored durations, in nanoseconds, if enough are stored.
    fn median(&self) -> Option<u64> {
        let count = self.count.min(KEPT);
        if count < NEEDED {
            return None;
        }
        let mut took = self.took;
        let (_, median, _) = took[..count].select_nth_unstable(count / 2);
        Some(u64::from(*median) * UNIT_NS)
    }
}

/// The parts of an iteration's duration that have a known cause, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    pub gc: u64,
    /// The time that the thread that runs the steps waited for the GIL.
    pub gil: u64,
    pub wait: u64,
    /// The time that the engine waited for requests.
    pub idle: u64,
}

/// An iteration that has fired the trigger, so that a window opens after it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fired {
    pub took: Duration,
    spent: Spent,
    median: Option<Duration>,
    kind: BatchClass,
    /// The number of times since the last window that the trigger fired without opening a window, because it
    /// had opened too many windows recently, or because the window conflicted with another one.
    pub skipped: u64,
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(f, "{:.3} ms", self.took.as_secs_f64() * 1e3)?;
        if let Some(median) = self.median {
            write!(
                f,
                " (median of its kind {:.3} ms; {})",
                median.as_secs_f64() * 1e3,
                self.kind
            )?;
        }
        for (ns, what) in [
            (self.spent.gc, "garbage collection"),
            (self.spent.gil, "waits for the GIL"),
            (self.spent.wait, "waits for the GPU"),
        ] {
            if ns > 0 {
                write!(f, ", {:.3} ms of {what}", ms(ns))?;
            }
        }
        if self.skipped > 0 {
            write!(
                f,
                "; {} more before, for which no window was opened",
                self.skipped
            )?;
        }
        Ok(())
    }
}

/// The state of a trigger, which examines each iteration and decides if a window opens after it.
#[derive(Clone, Debug)]
pub struct Watch {
    trigger: Trigger,
    kinds: Vec<Alike>,
    /// The time when the current iteration began, and the description of its batch.
    runs: Option<(Instant, BatchFacts)>,
    /// The duration of the latest iteration and the causes of its time, if [`Watch::ends`] has reported its end. If
    /// it is `None`, the iteration ends when the next one begins.
    over: Option<(Duration, Spent)>,
    /// The times at which the trigger opened windows, the latest last.
    opened: VecDeque<Instant>,
    /// See [`Fired::skipped`].
    skipped: u64,
}

impl Watch {
    pub fn new(trigger: &Trigger) -> Self {
        Self {
            trigger: trigger.clone(),
            kinds: vec![Alike::NONE; BatchClass::COUNT],
            runs: None,
            over: None,
            opened: VecDeque::with_capacity(trigger.at_most.windows as usize),
            skipped: 0,
        }
    }

    /// Returns the number of iterations in each window that the trigger opens.
    pub const fn steps(&self) -> u64 {
        self.trigger.steps
    }

    /// Makes the trigger ignore the current iteration, because a stream was captured in it, or because closing a window
    /// made it longer.
    pub fn interrupt(&mut self) {
        self.runs = None;
        self.over = None;
    }

    /// Called when the current iteration has ended and the next one has not begun. `spent` has the causes of the ended
    /// iteration's time.
    pub fn ends(&mut self, now: Instant, spent: Spent) {
        if let Some((since, _)) = self.runs {
            self.over = Some((now.saturating_duration_since(since), spent));
        }
    }

    /// Called when an iteration begins, which ends the previous one if [`Watch::ends`] was not called. `facts`
    /// describes the new batch, and `spent` has the causes of the previous iteration's time. `may_open` is true if a
    /// window can open now. If the trigger fires, so that a window has to open, returns the reason. The caller then has
    /// to call [`Watch::opens`] or [`Watch::skips`].
    pub fn begins(
        &mut self,
        facts: BatchFacts,
        now: Instant,
        spent: Spent,
        may_open: bool,
    ) -> Option<Fired> {
        let over = self.over.take();
        let (since, facts) = self.runs.replace((now, facts))?;
        let (took, spent) = over.unwrap_or((now.saturating_duration_since(since), spent));
        let took = took.saturating_sub(Duration::from_nanos(spent.idle));
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let kind = facts.kind();
        let alike = self.kinds.get_mut(kind.place())?;
        // If no window can open now, the median is not needed. The duration is only stored for
        // later medians.
        let median = may_open.then(|| alike.median()).flatten();
        alike.add(ns);
        let times = IterationDurations {
            iteration: Some(ns),
            gc: Some(spent.gc),
            gil: Some(spent.gil),
            wait: Some(spent.wait),
            stuck: None,
            p50: median,
        };
        if !may_open || self.trigger.condition.holds_for(facts, &times) != Some(true) {
            return None;
        }
        let is_past = |at: &Instant| now.saturating_duration_since(*at) >= self.trigger.at_most.per;
        while self.opened.front().is_some_and(is_past) {
            self.opened.pop_front();
        }
        if self.opened.len() as u64 >= self.trigger.at_most.windows {
            self.skipped += 1;
            return None;
        }
        Some(Fired {
            took,
            spent,
            median: median.map(Duration::from_nanos),
            kind,
            skipped: self.skipped,
        })
    }

    /// Called when a window opens because the trigger has fired at the time `now`.
    pub fn opens(&mut self, now: Instant) {
        self.opened.push_back(now);
        self.skipped = 0;
    }

    /// Called when the trigger has fired, but its window cannot open because it conflicts with another one.
    pub const fn skips(&mut self) {
        self.skipped += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_config::Condition;
    use tllmprof_config::trigger::AtMost;

    const MS: u64 = 1_000_000;

    fn watch(condition: &str, windows: u64, seconds: u64) -> Watch {
        Watch::new(&Trigger {
            condition: Condition::parse_with_times(condition).unwrap(),
            at_most: AtMost {
                windows,
                per: Duration::from_secs(seconds),
            },
            steps: 50,
        })
    }

    fn decode(requests: u32) -> BatchFacts {
        BatchFacts {
            requests: Some(requests),
            tokens: Some(requests),
            prefill_tokens: Some(0),
            is_draft: Some(false),
        }
    }

    fn prefill(tokens: u32) -> BatchFacts {
        BatchFacts {
            requests: Some(1),
            tokens: Some(tokens),
            prefill_tokens: Some(tokens),
            is_draft: Some(false),
        }
    }

    /// Simulates `iterations`, each with its batch, its duration in ns, and the causes of this duration. Returns the
    /// index of each iteration that fired the trigger, and the reason.
    fn drive(
        watch: &mut Watch,
        iterations: impl IntoIterator<Item = (BatchFacts, u64, Spent)>,
    ) -> Vec<(usize, Fired)> {
        let mut now = Instant::now();
        let mut fired = Vec::new();
        let mut before = Spent::default();
        let last = (BatchFacts::default(), 0, Spent::default());
        for (n, (facts, ns, spent)) in iterations.into_iter().chain([last]).enumerate() {
            let found = watch.begins(facts, now, before, true);
            if found.is_some() {
                watch.opens(now);
            }
            fired.extend(found.map(|found| (n.wrapping_sub(1), found)));
            now += Duration::from_nanos(ns);
            before = spent;
        }
        fired
    }

    fn numbers(fired: &[(usize, Fired)]) -> Vec<usize> {
        fired.iter().map(|(n, _)| *n).collect()
    }

    #[test]
    fn an_iteration_is_compared_with_those_like_it() {
        // In this test, every tenth iteration is a prefill that takes twenty times as long as a
        // decode. Only iterations 307 and 450 are slow for their kind.
        let load = |n: u64| {
            let jitter = n * 7919 % 11 * MS / 20;
            match (n, n % 10) {
                (307, _) => (decode(40), 25 * MS + jitter, Spent::default()),
                (450, _) => (prefill(3000), 520 * MS, Spent::default()),
                (_, 0) => (prefill(2100), 200 * MS + jitter, Spent::default()),
                _ => (
                    decode(33 + n as u32 % 30),
                    10 * MS + jitter,
                    Spent::default(),
                ),
            }
        };
        let fired = drive(
            &mut watch("iteration > 2*p50", 100, 3600),
            (0..600).map(load),
        );
        assert_eq!(numbers(&fired), [307, 450]);
        let line = fired[0].1.to_string();
        assert!(
            line.contains("(median of its kind 10.") && line.contains("decode, 32 to 63 requests"),
            "{line}"
        );
        // A fixed limit does not distinguish decodes and prefills, so each prefill fires the
        // trigger.
        let fired = drive(
            &mut watch("iteration > 50ms", 100, 3600),
            (0..600).map(load),
        );
        assert_eq!(fired.len(), 60);
    }

    #[test]
    fn nothing_is_said_of_a_kind_that_is_new() {
        let slow = |n: usize| {
            (
                decode(8),
                if n == NEEDED - 1 { 90 * MS } else { MS },
                Spent::default(),
            )
        };
        let fired = drive(
            &mut watch("iteration > 2*p50", 9, 3600),
            (0..NEEDED).map(slow),
        );
        assert_eq!(numbers(&fired), []);
        let one_more = [(decode(8), MS, Spent::default())];
        let steps = one_more.into_iter().chain((0..NEEDED).map(slow));
        let fired = drive(&mut watch("iteration > 2*p50", 9, 3600), steps);
        assert_eq!(numbers(&fired), [NEEDED]);
    }

    #[test]
    fn what_the_time_went_to_is_compared_and_said() {
        let load = |n: u64| {
            let spent = match n {
                40 => Spent {
                    gc: 12 * MS,
                    ..Spent::default()
                },
                60 => Spent {
                    gil: 6 * MS,
                    ..Spent::default()
                },
                80 => Spent {
                    wait: 30 * MS,
                    ..Spent::default()
                },
                _ => Spent::default(),
            };
            (decode(8), 10 * MS, spent)
        };
        let when = "gc > 10ms or gil > 5ms or wait > 20ms and requests>=8";
        let fired = drive(&mut watch(when, 9, 3600), (0..100).map(load));
        assert_eq!(numbers(&fired), [40, 60, 80]);
        assert!(
            fired[0]
                .1
                .to_string()
                .ends_with(", 12.000 ms of garbage collection")
        );
        assert!(
            fired[1]
                .1
                .to_string()
                .ends_with(", 6.000 ms of waits for the GIL")
        );
    }

    #[test]
    fn the_time_in_which_an_engine_waited_for_requests_is_none_of_an_iterations() {
        let load = |n: u64| match n {
            50 => (
                decode(8),
                9010 * MS,
                Spent {
                    idle: 9000 * MS,
                    ..Spent::default()
                },
            ),
            60 => (
                decode(8),
                9100 * MS,
                Spent {
                    idle: 9000 * MS,
                    ..Spent::default()
                },
            ),
            _ => (decode(8), 10 * MS, Spent::default()),
        };
        let fired = drive(&mut watch("iteration > 2*p50", 9, 3600), (0..100).map(load));
        assert_eq!(numbers(&fired), [60]);
    }

    #[test]
    fn what_comes_behind_an_iterations_end_is_none_of_its_time() {
        let mut watch = watch("iteration > 50ms or gc > 5ms", 9, 1);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let none = Spent::default();
        let gc = Spent { gc: 6 * MS, ..none };
        assert_eq!(watch.begins(BatchFacts::default(), at(0), none, true), None);
        watch.ends(at(40), none);
        assert_eq!(watch.begins(BatchFacts::default(), at(100), gc, true), None);
        watch.ends(at(160), none);
        assert!(
            watch
                .begins(BatchFacts::default(), at(200), none, true)
                .is_some()
        );
        watch.ends(at(201), gc);
        assert!(
            watch
                .begins(BatchFacts::default(), at(300), none, true)
                .is_some()
        );
    }

    #[test]
    fn so_many_windows_open_in_so_long() {
        let load = |n: u64| {
            (
                decode(8),
                if n % 10 == 9 { 100 * MS } else { MS },
                Spent::default(),
            )
        };
        // In this test, an iteration is slow every 109 ms, which is 9 or 10 times per second.
        let fired = drive(&mut watch("iteration > 50ms", 2, 1), (0..300).map(load));
        assert_eq!(numbers(&fired), [9, 19, 109, 119, 209, 219]);
        let skipped = |at: usize| fired[at].1.skipped;
        assert_eq!(
            (skipped(0), skipped(1), skipped(2), skipped(3)),
            (0, 0, 8, 0)
        );
        assert!(drive(&mut watch("iteration > 50ms", 0, 1), (0..300).map(load)).is_empty());
    }

    #[test]
    fn a_window_that_is_refused_uses_up_no_other() {
        let mut watch = watch("iteration > 50ms", 1, 3600);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let begins = |watch: &mut Watch, ms| {
            let fired = watch.begins(BatchFacts::default(), at(ms), Spent::default(), true);
            fired.map(|fired| fired.skipped)
        };
        assert_eq!(begins(&mut watch, 0), None);
        assert_eq!(begins(&mut watch, 100), Some(0));
        watch.skips();
        assert_eq!(begins(&mut watch, 200), Some(1));
        watch.opens(at(200));
        assert_eq!(begins(&mut watch, 300), None);
    }

    #[test]
    fn what_was_interrupted_is_not_compared() {
        let mut watch = watch("iteration > 50ms", 9, 1);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut begins =
            |ms, may_open| watch.begins(BatchFacts::default(), at(ms), Spent::default(), may_open);
        assert_eq!(begins(0, true), None);
        assert_eq!(begins(100, false), None, "a window is open");
        assert!(begins(200, true).is_some());
        watch.interrupt();
        let mut begins = |ms| watch.begins(BatchFacts::default(), at(ms), Spent::default(), true);
        assert_eq!(begins(300), None);
        assert!(begins(400).is_some());
    }
}
