//! Detects when the time of a step has settled, so that a window of steady iterations can begin.
//!
//! Steps are compared in blocks. The time has settled once the last three blocks of eight steps agree, in their medians
//! or in their means. The medians ignore steps that are slow from time to time, such as a garbage collection in every
//! third step. The means are computed without the longest step of each block. The means are needed for several threads
//! that run steps side by side at a steady rate. A step lasts until any thread begins the next one. So if all threads
//! begin close together, several short steps and a long one follow each other. If steps take over 0.3 s, three steps
//! that agree are enough.
//!
//! Some steps do not count, and cannot end the search. A step in which a stream is captured does not count, and the
//! steps before it are discarded, because the program may do other work after the capture than before it. Steps of
//! batches without requests do not count. Steps in which the program waited for requests do not count either. Such a
//! step is recognized because the program reported the wait, or because the step took over ten times as long as usual.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

/// The number of steps in a block, whose durations are compared together.
const BLOCK: usize = 8;
/// The number of successive blocks whose durations have to agree.
const BLOCKS: usize = 3;
/// The largest difference between blocks that agree, in percent of the shortest block's duration.
const WITHIN: u32 = 10;
/// The smallest number of steps after which the time of a step can be known to have settled, unless steps take longer
/// than `SLOW`.
pub const NEEDED: u64 = BLOCK as u64 * BLOCKS as u64;
/// The number of steps after which a window opens even if the time of a step has not settled.
pub const ENOUGH: u64 = 128;
/// The total duration of steps after which a window opens even if the time of a step has not settled. At least twice
/// [`NEEDED`] steps must have been seen by then.
pub const LONG_ENOUGH: Duration = Duration::from_secs(4);
/// Limits for steps that take longer than `SLOW`. Such steps are compared one by one instead of in blocks.
/// `SLOW_NEEDED` of them have to agree. After `ENOUGH_SLOW` of them a window opens in any case.
const SLOW: Duration = Duration::from_millis(300);
const SLOW_NEEDED: usize = 3;
const ENOUGH_SLOW: usize = LATEST;
/// The number of step durations that are stored: those of the latest steps.
const LATEST: usize = 8;
/// The time (without waits for the GPU) above which a step can be a pause, that is, a step in which the program
/// probably waited for requests. Shorter pauses need no special treatment, because a block's median ignores them.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The factor for pauses: a step is a pause only if it takes more than this number of times as long
/// as a usual step.
const PAUSE: u32 = 10;
/// The largest number of pauses in a row. If more long steps follow each other, they are not pauses: steps
/// have become longer.
const MOST_PAUSES: u32 = 8;

/// The result of the search for steady steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The time of a step has settled. The value is this time.
    Settled(Duration),
    /// The time has not settled, but the search has ended because it took too long.
    Unsettled(Unsettled),
}

/// The number of steps and their durations, for a search that ended although the time of a step had not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// The number of steps that counted in the search.
    seen: u64,
    /// The number of latest steps that were compared, and the shortest and the longest duration among them.
    /// If blocks were compared, the durations are medians of blocks. `None` if stream captures left too few
    /// steps to compare.
    latest: Option<(u64, Duration, Duration)>,
}

/// Facts about two successive steps: if the step that begins counts (`counts`), and how long the program waited in
/// the previous step, which has just ended (the other fields).
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// True if the step that begins counts: no condition excludes it, and its batch has requests.
    pub counts: bool,
    /// Two parts of the previous step's duration: the time that the program waited for requests, and the time
    /// that the step's thread waited for the GPU.
    pub idle: Duration,
    pub gpu_wait: Duration,
}

impl Known {
    /// Returns true if waiting for requests took more than a tenth of the step, which took `took`.
    pub fn has_waited(&self, took: Duration) -> bool {
        self.idle * 10 > took
    }

    /// Returns true if a step that took `took` is a pause, compared with the `usual` duration. In a pause the
    /// GPU has no work for a long time. A long step in which the GPU works, such as a prefill between
    /// decodes, is not a pause.
    pub fn is_pause(&self, took: Duration, usual: Duration) -> bool {
        let alone = took.saturating_sub(self.gpu_wait);
        alone > SHORTEST_PAUSE && alone > usual * PAUSE
    }
}

/// The durations of the latest steps that counted, the latest first.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    steps: [Duration; LATEST],
    count: usize,
}

impl Latest {
    fn push(&mut self, step: Duration) {
        self.steps.rotate_right(1);
        self.steps[0] = step;
        self.count = (self.count + 1).min(LATEST);
    }

    /// Returns the shortest and the longest duration of the latest `many` steps; `None` if there are fewer
    /// steps.
    fn range(&self, many: usize) -> Option<(Duration, Duration)> {
        let steps = self.steps[..self.count].get(..many)?;
        steps.iter().copied().min().zip(steps.iter().copied().max())
    }

    /// Returns the usual duration of a step (the median), if enough steps are known.
    fn usual(&self) -> Option<Duration> {
        let mut steps = self.steps;
        let steps = &mut steps[..self.count];
        steps.sort_unstable();
        (steps.len() >= SLOW_NEEDED).then(|| steps[steps.len() / 2])
    }

    /// Returns the mean duration of the latest three steps, if all of them are slow (longer than `SLOW`) and their
    /// durations agree.
    fn agreed(&self) -> Option<Duration> {
        let (shortest, longest) = self.range(SLOW_NEEDED)?;
        let sum: Duration = self.steps[..SLOW_NEEDED].iter().sum();
        (shortest > SLOW && agree(shortest, longest)).then(|| sum / SLOW_NEEDED as u32)
    }
}

fn agree(shortest: Duration, longest: Duration) -> bool {
    longest.saturating_sub(shortest) <= shortest * WITHIN / 100
}

/// The durations of the steps in the latest block, which is not full yet. Only full blocks are compared.
#[derive(Clone, Copy, Debug, Default)]
struct OpenBlock {
    steps: [Duration; BLOCK],
    count: usize,
}

/// The medians or the means of the latest blocks of steps, the oldest first.
#[derive(Clone, Copy, Debug, Default)]
struct Recent([Option<Duration>; BLOCKS]);

impl Recent {
    fn push(&mut self, block: Duration) {
        self.0.rotate_left(1);
        self.0[BLOCKS - 1] = Some(block);
    }

    /// Returns the shortest and the longest of the blocks' values; `None` if there are not enough blocks.
    fn range(&self) -> Option<(Duration, Duration)> {
        let known = || self.0.iter().copied().flatten();
        let range = known().min().zip(known().max());
        range.filter(|_| known().count() == BLOCKS)
    }

    /// Returns the mean of the blocks' values, if they agree.
    fn agreed(&self) -> Option<Duration> {
        let (shortest, longest) = self.range()?;
        let sum: Duration = self.0.iter().copied().flatten().sum();
        agree(shortest, longest).then(|| sum / BLOCKS as u32)
    }
}

/// The search for steady steps, with the results so far.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    /// The number of the current step, and the time when it began.
    running: Option<(u64, Instant)>,
    block: OpenBlock,
    medians: Recent,
    means: Recent,
    latest: Latest,
    /// The number of pauses in a row so far: those since the last step that was not a pause.
    pauses: u32,
    seen: u64,
    /// The total duration of the steps that count in the search.
    time: Duration,
    verdict: Option<Verdict>,
}

impl Settling {
    /// Called when step number `iteration` begins at `now`, which ends the previous step.
    pub fn begins(&mut self, iteration: u64, now: Instant, known: Known) {
        if self.verdict.is_some() {
            return;
        }
        if let Some((running, since)) = self.running.take() {
            let took = now.saturating_duration_since(since);
            let is_next = iteration == running.wrapping_add(1);
            if is_next && !known.has_waited(took) && !self.is_pause(took, known) {
                self.seen += 1;
                self.time += took;
                self.add(took);
                self.verdict = self.judge();
            }
        }
        self.running = known.counts.then_some((iteration, now));
    }

    /// Returns true if the step that has ended, which took `took`, is left out as a pause. After more than
    /// `MOST_PAUSES` long steps in a row, returns false, because steps have become longer.
    fn is_pause(&mut self, took: Duration, known: Known) -> bool {
        let usual = self.latest.usual();
        let is_long = usual.is_some_and(|usual| known.is_pause(took, usual));
        self.pauses = match is_long {
            true => self.pauses + 1,
            false => 0,
        };
        if self.pauses > MOST_PAUSES {
            (self.pauses, self.latest) = Default::default();
            return false;
        }
        is_long
    }

    /// Called at a stream capture. Discards the durations of the steps so far, because the program may do other work
    /// after the capture than before it. The number of steps that have counted ([`Settling::seen`]) stays.
    pub fn interrupt(&mut self) {
        self.running = None;
        self.block = OpenBlock::default();
        (self.medians, self.means, self.latest) = Default::default();
    }

    /// Called when the iteration count restarts. Discards all steps so far, because they were the program's warm-up.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    fn add(&mut self, step: Duration) {
        self.latest.push(step);
        let OpenBlock { steps, count } = &mut self.block;
        if let Some(place) = steps.get_mut(*count) {
            *place = step;
            *count += 1;
        }
        if *count == BLOCK {
            steps.sort_unstable();
            self.medians
                .push((steps[BLOCK / 2 - 1] + steps[BLOCK / 2]) / 2);
            let without_longest: Duration = steps[..BLOCK - 1].iter().sum();
            self.means.push(without_longest / (BLOCK as u32 - 1));
            self.block = OpenBlock::default();
        }
    }

    fn judge(&self) -> Option<Verdict> {
        let blocks = self.medians.agreed().or_else(|| self.means.agreed());
        if let Some(agreed) = blocks.or_else(|| self.latest.agreed()) {
            return Some(Verdict::Settled(agreed));
        }
        let slow = self.latest.range(ENOUGH_SLOW);
        let (many, range) = match slow.filter(|(shortest, _)| *shortest > SLOW) {
            Some(slow) => (ENOUGH_SLOW as u64, Some(slow)),
            None if self.has_seen_enough() => (NEEDED, self.medians.range()),
            None => return None,
        };
        Some(Verdict::Unsettled(Unsettled {
            seen: self.seen,
            latest: range.map(|(shortest, longest)| (many, shortest, longest)),
        }))
    }

    /// Returns true if the search has to end although the steps are not steady.
    fn has_seen_enough(&self) -> bool {
        self.seen >= ENOUGH || self.seen >= 2 * NEEDED && self.time >= LONG_ENOUGH
    }

    /// Returns the result of the search, if it has ended.
    pub const fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Returns the number of steps that have counted in the search so far.
    pub const fn seen(&self) -> u64 {
        self.seen
    }
}

impl Verdict {
    /// Returns the reason why the step time is not known to have settled; `None` if it has.
    pub fn shortcoming(self) -> Option<Shortcoming> {
        match self {
            Self::Settled(_) => None,
            Self::Unsettled(unsettled) => Some(Shortcoming(unsettled)),
        }
    }
}

/// Formats the verdict as the end of a phrase, such as `steady at 1.023 ms`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled(step) => write!(f, "steady at {:.3} ms", ms(step)),
            Self::Unsettled(_) => f.write_str("not steady"),
        }
    }
}

/// The reason why the step time is not known to have settled, formatted as a sentence.
pub struct Shortcoming(Unsettled);

impl fmt::Display for Shortcoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsettled { seen, latest } = &self.0;
        write!(
            f,
            "the time of an iteration did not settle in {seen} iterations: "
        )?;
        match latest {
            None => f.write_str("streams were captured between them"),
            Some((many, shortest, longest)) => write!(
                f,
                "{:.3} to {:.3} ms in the last {many}",
                ms(shortest),
                ms(longest)
            ),
        }
    }
}

fn ms(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that no condition excludes, and in which the program waited neither for requests nor for the GPU.
    const OWN: Known = Known {
        counts: true,
        idle: Duration::ZERO,
        gpu_wait: Duration::ZERO,
    };

    /// Simulates `count` steps that take `micros` microseconds each. A stream is captured after a step for
    /// which `captures` returns true. Returns the state of the search, and the step at which the window
    /// opens.
    fn steps(
        count: u64,
        micros: impl Fn(u64) -> u64,
        captures: impl Fn(u64) -> bool,
    ) -> (Settling, Option<u64>) {
        let mut settling = Settling::default();
        let mut now = Instant::now();
        for n in 0..count {
            settling.begins(n, now, OWN);
            if settling.verdict().is_some() {
                return (settling, Some(n));
            }
            now += Duration::from_micros(micros(n));
            if captures(n) {
                settling.interrupt();
            }
        }
        (settling, None)
    }

    fn opens_at(micros: impl Fn(u64) -> u64) -> (String, Option<u64>) {
        let (settling, at) = steps(1000, micros, |_| false);
        let verdict = settling.verdict();
        (verdict.map_or_else(String::new, |v| v.to_string()), at)
    }

    fn said(text: &str, at: u64) -> (String, Option<u64>) {
        (text.to_owned(), Some(at))
    }

    #[test]
    fn steps_that_take_as_long_as_each_other_have_settled_at_once() {
        assert_eq!(opens_at(|_| 1023), said("steady at 1.023 ms", NEEDED));
        // Steps of a few microseconds, and steps that differ a little, lead to the same result as steps of equal
        // length.
        assert_eq!(opens_at(|_| 5), said("steady at 0.005 ms", NEEDED));
        assert_eq!(opens_at(|n| 1000 + n % 3 * 40).1, Some(NEEDED));
        assert_eq!(opens_at(|_| 0).1, Some(NEEDED));
    }

    #[test]
    fn a_warm_up_is_not_taken() {
        // A minority of slow steps does not change the result: the first three, every ninth, or
        // every third step is slow.
        for is_slow in [|n| n < 3, |n| n % 9 == 0, |n| n % 3 == 0] as [fn(u64) -> bool; 3] {
            assert_eq!(
                opens_at(|n| if is_slow(n) { 90_000 } else { 1000 }),
                said("steady at 1.000 ms", NEEDED)
            );
        }
        // If most steps of the first block are slow, the search takes more steps.
        assert_eq!(
            opens_at(|n| if n < 6 { 90_000 } else { 1000 }).1,
            Some(NEEDED + 8)
        );
        // The steps get faster up to step 100, as in a warm-up, so their time settles only after step 100.
        let warms_up = |n: u64| if n < 100 { 3000 - 20 * n } else { 1000 };
        let (_, at) = opens_at(warms_up);
        assert!(at.is_some_and(|at| (100..=128).contains(&at)), "{at:?}");
        // Simulates four threads whose steps begin one right after the other. Then the threads wait for each
        // other until all begin again.
        assert_eq!(
            opens_at(|n| if n % 4 == 3 { 4000 } else { 10 }).1,
            Some(NEEDED)
        );
    }

    #[test]
    fn what_never_settles_is_taken_in_the_end_and_said() {
        let (settling, at) = steps(1000, |n| 1000 + (n / 8) % 2 * 500, |_| false);
        let verdict = settling.verdict().unwrap();
        assert_eq!(at, Some(ENOUGH));
        assert_eq!(verdict.to_string(), "not steady");
        assert_eq!(
            verdict.shortcoming().unwrap().to_string(),
            "the time of an iteration did not settle in 128 iterations: 1.000 to 1.500 ms in the last 24"
        );
    }

    #[test]
    fn a_capture_starts_it_again_and_ends_nothing() {
        let (settling, at) = steps(1000, |_| 1000, |n| n == 20);
        assert_eq!(at, Some(21 + NEEDED));
        assert!(matches!(settling.verdict(), Some(Verdict::Settled(_))));
        let (settling, at) = steps(1000, |_| 1000, |_| true);
        assert_eq!((at, settling.seen()), (None, 0));
        // Stream captures interrupt every fifth step. The other steps count, so the search ends once [`ENOUGH`] of
        // them have been seen.
        let (settling, at) = steps(1000, |_| 1000, |n| n % 5 == 0);
        assert_eq!(at, Some(ENOUGH / 4 * 5));
        let why = settling.verdict().unwrap().shortcoming().unwrap();
        assert!(
            why.to_string()
                .ends_with(": streams were captured between them")
        );
    }

    #[test]
    fn what_comes_before_the_count_starts_again_was_the_warm_up() {
        let mut settling = Settling::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            for n in 0..20 {
                settling.begins(n, now, OWN);
                now += Duration::from_millis(1);
            }
            settling.restart();
        }
        assert_eq!((settling.verdict(), settling.seen()), (None, 0));
        // The duration of the warm-up does not count towards LONG_ENOUGH, either, and a verdict on the warm-up is
        // dropped. The steps after the warm-up are never steady, so the search ends only after ENOUGH of them. The test
        // runs one step fewer.
        for n in 0..NEEDED {
            settling.begins(n, now, OWN);
            now += Duration::from_millis(250 * (1 + n / BLOCK as u64));
        }
        settling.restart();
        for n in 0..ENOUGH {
            settling.begins(n, now, OWN);
            now += Duration::from_millis(1 + n / BLOCK as u64 % 2);
        }
        assert_eq!((settling.verdict(), settling.seen()), (None, ENOUGH - 1));
    }

    #[test]
    fn of_slow_steps_three_that_agree_are_enough() {
        assert_eq!(opens_at(|_| 400_000), said("steady at 400.000 ms", 3));
        let warms_up = |n| if n < 2 { 900_000 } else { 400_000 };
        assert_eq!(opens_at(warms_up), said("steady at 400.000 ms", 5));
        // If slow steps (over 0.3 s) do not agree, the search ends after eight steps.
        let (settling, at) = steps(1000, |n| 400_000 * (1 + n % 2), |_| false);
        assert_eq!(at, Some(8));
        assert_eq!(
            settling
                .verdict()
                .unwrap()
                .shortcoming()
                .unwrap()
                .to_string(),
            "the time of an iteration did not settle in 8 iterations: 400.000 to 800.000 ms in the last 8"
        );
        assert_eq!(opens_at(|_| 300_000).1, Some(NEEDED));
    }

    #[test]
    fn waits_for_requests_are_left_out() {
        // In this test, two warm-up batches run, and then the server waits for its first request.
        let first = |n| match n {
            2 => 25_000_000,
            _ => 5000,
        };
        assert_eq!(opens_at(first), said("steady at 5.000 ms", NEEDED));
        let late = |n| match n {
            3 | 9 | 17 => 25_000_000,
            _ => 5000,
        };
        assert_eq!(opens_at(late), said("steady at 5.000 ms", NEEDED + 3));
        // Steps that become longer and stay longer are treated as pauses only at first, so the search ends with their
        // duration.
        let longer = |n| if n < 10 { 5000 } else { 200_000 };
        assert_eq!(opens_at(longer).0, "steady at 200.000 ms");
        // Long steps in which the thread waits for the GPU count as the program's work, not as
        // pauses.
        let mut settling = Settling::default();
        let mut now = Instant::now();
        for n in 0..100 {
            let took = Duration::from_millis(if n % 4 == 3 { 200 } else { 5 });
            let gpu_wait = took - Duration::from_millis(1);
            now += took;
            settling.begins(n, now, Known { gpu_wait, ..OWN });
            assert_eq!(settling.seen(), n.min(NEEDED), "{n}");
        }
        // If the program waits for requests in each step, no step counts and the search never ends.
        let mut settling = Settling::default();
        let mut now = Instant::now();
        for n in 0..1000 {
            let idle = Duration::from_millis(3);
            settling.begins(n, now, Known { idle, ..OWN });
            now += Duration::from_millis(5 + n % 20);
        }
        assert_eq!((settling.verdict(), settling.seen()), (None, 0));
    }

    #[test]
    fn too_few_steps_have_no_verdict() {
        let (settling, at) = steps(NEEDED, |_| 1000, |_| false);
        assert_eq!((at, settling.seen()), (None, NEEDED - 1));
    }

    #[test]
    fn steps_that_do_not_count_are_left_out() {
        let mut settling = Settling::default();
        let mut now = Instant::now();
        let mut opened = None;
        for n in 0..400 {
            // Every third step does not count. Its duration differs from that of the other steps,
            // but must not matter.
            let counts = n % 3 != 0;
            settling.begins(n, now, Known { counts, ..OWN });
            if settling.verdict().is_some() {
                opened = opened.or(Some(n));
            }
            now += Duration::from_micros(if counts { 1000 } else { 7000 + 31 * n });
        }
        let text = settling.verdict().map(|verdict| verdict.to_string());
        assert_eq!(
            (text.as_deref(), opened),
            (Some("steady at 1.000 ms"), Some(36))
        );
    }
}
