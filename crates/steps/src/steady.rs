//! Whether the time of a step has settled, which is where a window of steady iterations begins.
//!
//! Steps are looked at in blocks. The time has settled once the last few blocks agree. A block's longest step does not
//! count, as a pause (a collection, a wait for requests) comes and goes. What a stream capture interrupts does not
//! count either: before and after it, other work runs.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

/// Steps of a block.
const BLOCK: u32 = 8;
/// Blocks that have to agree.
const BLOCKS: usize = 3;
/// By how many percent of the shortest the mean steps of blocks that agree may differ.
const WITHIN: u32 = 10;
/// Steps that are needed to see it.
pub const NEEDED: u64 = BLOCK as u64 * BLOCKS as u64;
/// Steps after which they are taken as they are.
pub const ENOUGH: u64 = 256;

/// What has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has settled: this is how long a step takes.
    Settled(Duration),
    /// It has not settled within [`ENOUGH`] steps: the shortest and the longest of the blocks that were compared
    /// last, by their mean steps; nothing where stream captures left no blocks to compare.
    Unsettled(Option<(Duration, Duration)>),
}

/// A block that is not full yet.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    steps: u32,
    total: Duration,
    longest: Duration,
}

/// Looks at the steps of a process one after the other.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    /// The step that runs, and when it began.
    running: Option<(u64, Instant)>,
    block: Block,
    /// The mean steps of the last blocks, the oldest first.
    means: [Option<Duration>; BLOCKS],
    seen: u64,
    verdict: Option<Verdict>,
}

impl Settling {
    /// Step number `iteration` begins at `now`, and with it the one before is over. `counts`: it is of those that
    /// are looked at.
    pub fn begins(&mut self, iteration: u64, now: Instant, counts: bool) {
        if self.verdict.is_some() {
            return;
        }
        if let Some((running, since)) = self.running.take() {
            self.seen += 1;
            if iteration == running.wrapping_add(1) {
                self.add(now.saturating_duration_since(since));
            }
            self.verdict = self.judge();
        }
        self.running = counts.then_some((iteration, now));
    }

    /// A stream was captured, or the count starts again.
    pub fn interrupt(&mut self) {
        // How many steps were seen is kept: a program that always captures gets its window, too.
        self.seen += u64::from(self.running.take().is_some());
        self.block = Block::default();
        self.means = [None; BLOCKS];
    }

    fn add(&mut self, step: Duration) {
        let block = &mut self.block;
        block.steps += 1;
        block.total = block.total.saturating_add(step);
        block.longest = block.longest.max(step);
        if block.steps == BLOCK {
            let mean = block.total.saturating_sub(block.longest) / (BLOCK - 1);
            self.means.rotate_left(1);
            self.means[BLOCKS - 1] = Some(mean);
            self.block = Block::default();
        }
    }

    fn judge(&self) -> Option<Verdict> {
        let known = || self.means.iter().flatten();
        let range = known().min().copied().zip(known().max().copied());
        let range = range.filter(|_| known().count() == BLOCKS);
        if let Some((shortest, longest)) = range
            && longest.saturating_sub(shortest) <= shortest * WITHIN / 100
        {
            let all: Duration = known().sum();
            return Some(Verdict::Settled(all / BLOCKS as u32));
        }
        (self.seen >= ENOUGH).then_some(Verdict::Unsettled(range))
    }

    /// What has become of it, if that is known.
    pub const fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Steps that were looked at.
    pub const fn seen(&self) -> u64 {
        self.seen
    }
}

/// As it stands behind what a message names: `steady at 1.023 ms`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        match self {
            Self::Settled(step) => write!(f, "steady at {:.3} ms", ms(step)),
            Self::Unsettled(None) => {
                write!(
                    f,
                    "not steady in {ENOUGH} iterations: streams were captured between them"
                )
            }
            Self::Unsettled(Some((shortest, longest))) => write!(
                f,
                "not steady in {ENOUGH} iterations: {:.3} to {:.3} ms",
                ms(shortest),
                ms(longest)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that take as long as `micros` says of each, and after which of them a stream was captured.
    fn steps(
        count: u64,
        micros: impl Fn(u64) -> u64,
        captures: impl Fn(u64) -> bool,
    ) -> (Settling, Option<u64>) {
        let mut settling = Settling::default();
        let mut now = Instant::now();
        for n in 0..count {
            settling.begins(n, now, true);
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
        // Of some microseconds, too, and some that differ by a little.
        assert_eq!(opens_at(|_| 5), said("steady at 0.005 ms", NEEDED));
        assert_eq!(opens_at(|n| 1000 + n % 3 * 40).1, Some(NEEDED));
        assert_eq!(opens_at(|_| 0).1, Some(NEEDED));
    }

    #[test]
    fn a_warm_up_is_not_taken() {
        // Two slow steps are more than a block leaves out.
        assert_eq!(
            opens_at(|n| if n < 2 { 90_000 } else { 1000 }).1,
            Some(NEEDED + 8)
        );
        // One is not: a collection now and then does not matter.
        assert_eq!(
            opens_at(|n| if n % 9 == 0 { 9_000 } else { 1000 }),
            said("steady at 1.000 ms", NEEDED)
        );
        // It gets faster, and faster.
        let warms_up = |n: u64| if n < 100 { 3000 - 20 * n } else { 1000 };
        let (_, at) = opens_at(warms_up);
        assert!(at.is_some_and(|at| (100..=128).contains(&at)), "{at:?}");
        // Threads that step side by side begin one after the other, and then wait for each other.
        assert_eq!(
            opens_at(|n| if n % 4 == 3 { 4000 } else { 10 }).1,
            Some(NEEDED)
        );
    }

    #[test]
    fn what_never_settles_is_taken_in_the_end_and_said() {
        let (text, at) = opens_at(|n| 1000 + (n / 8) % 2 * 500);
        assert_eq!(
            (text.as_str(), at),
            (
                "not steady in 256 iterations: 1.000 to 1.500 ms",
                Some(ENOUGH)
            )
        );
    }

    #[test]
    fn a_capture_starts_it_again_but_not_for_ever() {
        let (settling, at) = steps(1000, |_| 1000, |n| n == 20);
        assert_eq!(at, Some(21 + NEEDED));
        assert!(matches!(settling.verdict(), Some(Verdict::Settled(_))));
        let (settling, at) = steps(1000, |_| 1000, |n| n % 10 == 0);
        assert_eq!(at, Some(ENOUGH), "{settling:?}");
        let (settling, at) = steps(1000, |_| 1000, |n| n % 5 == 0);
        assert!(at.is_some_and(|at| (ENOUGH..ENOUGH + 4).contains(&at)));
        assert_eq!(
            settling.verdict().unwrap().to_string(),
            "not steady in 256 iterations: streams were captured between them"
        );
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
            // Every third one is of another kind, and its time is its own.
            let counts = n % 3 != 0;
            settling.begins(n, now, counts);
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
