//! Whether the time of a step has settled, which is where a window of steady iterations begins.
//!
//! Steps are looked at in blocks. The time has settled once the last few blocks agree, by their medians or by their
//! means. The medians leave out what is slow now and then, such as a collection in every third step. The means, without
//! the longest step of each block, find threads steady that step side by side: the steps of those begin together, and
//! then one lasts until all begin again. What a stream capture interrupts does not count: before and after it, other
//! work runs.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

/// Steps of a block.
const BLOCK: usize = 8;
/// Blocks that have to agree.
const BLOCKS: usize = 3;
/// By how many percent of the shortest blocks that agree may differ.
const WITHIN: u32 = 10;
/// Steps that are needed to see it.
pub const NEEDED: u64 = BLOCK as u64 * BLOCKS as u64;
/// Steps after which they are taken as they are.
pub const ENOUGH: u64 = 128;

/// What has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has settled: this is how long a step takes.
    Settled(Duration),
    /// It has not settled within [`ENOUGH`] steps: the shortest and the longest of the blocks that were compared
    /// last, by their medians; nothing where stream captures left no blocks to compare.
    Unsettled(Option<(Duration, Duration)>),
}

/// A block that is not full yet.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    steps: [Duration; BLOCK],
    count: usize,
}

/// What the last blocks come to, the oldest first.
#[derive(Clone, Copy, Debug, Default)]
struct Recent([Option<Duration>; BLOCKS]);

impl Recent {
    fn push(&mut self, block: Duration) {
        self.0.rotate_left(1);
        self.0[BLOCKS - 1] = Some(block);
    }

    /// The shortest and the longest, if there are enough.
    fn range(&self) -> Option<(Duration, Duration)> {
        let known = || self.0.iter().copied().flatten();
        let range = known().min().zip(known().max());
        range.filter(|_| known().count() == BLOCKS)
    }

    /// What they agree on.
    fn agreed(&self) -> Option<Duration> {
        let (shortest, longest) = self.range()?;
        let agree = longest.saturating_sub(shortest) <= shortest * WITHIN / 100;
        let sum: Duration = self.0.iter().copied().flatten().sum();
        agree.then(|| sum / BLOCKS as u32)
    }
}

/// Looks at the steps of a process one after the other.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    /// The step that runs, and when it began.
    running: Option<(u64, Instant)>,
    block: Block,
    medians: Recent,
    means: Recent,
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
        (self.medians, self.means) = Default::default();
    }

    fn add(&mut self, step: Duration) {
        let Block { steps, count } = &mut self.block;
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
            self.block = Block::default();
        }
    }

    fn judge(&self) -> Option<Verdict> {
        let agreed = self.medians.agreed().or_else(|| self.means.agreed());
        let unsettled = || Verdict::Unsettled(self.medians.range());
        agreed
            .map(Verdict::Settled)
            .or_else(|| (self.seen >= ENOUGH).then(unsettled))
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

impl Verdict {
    /// Why steps were taken that are not known to be steady.
    pub fn shortcoming(self) -> Option<Shortcoming> {
        match self {
            Self::Settled(_) => None,
            Self::Unsettled(range) => Some(Shortcoming(range)),
        }
    }
}

/// As it stands behind what a message names: `steady at 1.023 ms`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled(step) => write!(f, "steady at {:.3} ms", ms(step)),
            Self::Unsettled(_) => f.write_str("not steady"),
        }
    }
}

/// Why steps are not known to be steady, in words.
pub struct Shortcoming(Option<(Duration, Duration)>);

impl fmt::Display for Shortcoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the time of an iteration did not settle in {ENOUGH} iterations: "
        )?;
        match &self.0 {
            None => f.write_str("streams were captured between them"),
            Some((shortest, longest)) => write!(
                f,
                "{:.3} to {:.3} ms in the last {NEEDED}",
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
        // What is slow now and then does not matter: in a few steps at first, in each ninth, in each third.
        for is_slow in [|n| n < 3, |n| n % 9 == 0, |n| n % 3 == 0] as [fn(u64) -> bool; 3] {
            assert_eq!(
                opens_at(|n| if is_slow(n) { 90_000 } else { 1000 }),
                said("steady at 1.000 ms", NEEDED)
            );
        }
        // What is slow more often does.
        assert_eq!(
            opens_at(|n| if n < 6 { 90_000 } else { 1000 }).1,
            Some(NEEDED + 8)
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
    fn a_capture_starts_it_again_but_not_for_ever() {
        let (settling, at) = steps(1000, |_| 1000, |n| n == 20);
        assert_eq!(at, Some(21 + NEEDED));
        assert!(matches!(settling.verdict(), Some(Verdict::Settled(_))));
        let (settling, at) = steps(1000, |_| 1000, |n| n % 10 == 0);
        assert_eq!(at, Some(ENOUGH), "{settling:?}");
        let (settling, at) = steps(1000, |_| 1000, |n| n % 5 == 0);
        assert!(at.is_some_and(|at| (ENOUGH..ENOUGH + 4).contains(&at)));
        let why = settling.verdict().unwrap().shortcoming().unwrap();
        assert!(
            why.to_string()
                .ends_with(": streams were captured between them")
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
