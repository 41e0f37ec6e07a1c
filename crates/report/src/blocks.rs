//! Blocks of kernels that repeat within an iteration: as a rule the layers of a model, where nothing says which these are.

use std::collections::HashMap;
use std::ops::Range;

use tllmprof_record::{StringId, Strings};

use crate::kernel_name;

/// How many kernels are looked at in all, and in an iteration.
const LIMIT: usize = 1 << 20;
const LONGEST: usize = 1 << 12;
/// How many equal blocks make it a repetition, and what part of an iteration's kernels they have to be.
const LEAST: usize = 3;
const PART: f64 = 0.5;

/// The blocks of the iterations whose kernels are called alike, one by one; of several such kinds, of the one that most iterations
/// are. Times are in nanoseconds, sums over these iterations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// What the kernels of a block are called, one after the other.
    pub kernels: Vec<BlockKernel>,
    /// How long the kernels of each equal block took.
    pub blocks: Vec<u64>,
    /// How many kernels of the next block are equal, too, if that is at least half of them: such as a model's last layer, which works on
    /// fewer tokens.
    pub partly: Option<usize>,
    /// Of an iteration, the kernels before the blocks and behind them, and what they took.
    pub before: Outside,
    pub behind: Outside,
    /// The iterations that this is of, and those in which kernels were taken.
    pub iterations: u64,
    pub of: u64,
}

/// One of a block's kernels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockKernel {
    /// As people know it.
    pub name: String,
    /// What it took in all blocks.
    pub ns: u64,
}

/// Kernels that are in no block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outside {
    /// In an iteration.
    pub kernels: usize,
    pub ns: u64,
}

impl Blocks {
    /// What the equal blocks took.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// What all kernels of these iterations took.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.before.ns + self.ns() + self.behind.ns
    }

    /// What part of it a time is.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.all().max(1) as f64
    }

    /// What a block takes in the mean.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.ns() / (self.blocks.len() as u64 * self.iterations).max(1)
    }
}

/// A kernel that ran.
#[derive(Clone, Copy, Debug)]
struct Ran {
    device: u8,
    place: u32,
    start: u64,
    name: StringId,
    ns: u64,
}

/// The kernels, in the order of the record.
#[derive(Debug, Default)]
pub struct BlockTally {
    ran: Vec<Ran>,
    is_too_much: bool,
}

impl BlockTally {
    /// A kernel that began in the iteration of this place.
    pub fn add(&mut self, device: u8, place: usize, start: u64, name: StringId, ns: u64) {
        if self.ran.len() >= LIMIT {
            self.is_too_much = true;
            return;
        }
        self.ran.push(Ran {
            device,
            place: place as u32,
            start,
            name,
            ns,
        });
    }

    /// `is_inside`: whether the iteration of a place is one in which kernels were taken, and counts.
    pub fn finish(mut self, is_inside: &[bool], strings: &Strings) -> Option<Blocks> {
        // Which iterations there is no room for is chance: nothing is said of the others.
        if self.is_too_much {
            return None;
        }
        self.ran.retain(|ran| is_inside[ran.place as usize]);
        let device = busiest(&self.ran)?;
        self.ran.retain(|ran| ran.device == device);
        self.ran.sort_by_key(|ran| (ran.place, ran.start));
        let mut kinds: HashMap<Vec<StringId>, Vec<&[Ran]>> = HashMap::new();
        for iteration in self.ran.chunk_by(|a, b| a.place == b.place) {
            let names = iteration.iter().map(|ran| ran.name).collect();
            kinds.entry(names).or_default().push(iteration);
        }
        let of = is_inside.iter().filter(|inside| **inside).count() as u64;
        // The one of most iterations; of several, the first.
        let (names, iterations) = kinds
            .iter()
            .max_by_key(|(_, iterations)| (iterations.len(), u32::MAX - iterations[0][0].place))?;
        let found = repeated(names)?;
        Some(summed(&found, iterations, of, strings))
    }
}

/// The device that ran most kernels.
fn busiest(ran: &[Ran]) -> Option<u8> {
    let mut count = [0_u32; 256];
    for ran in ran {
        count[usize::from(ran.device)] += 1;
    }
    let most = *count.iter().max()?;
    let device = count.iter().position(|count| *count == most && most > 0)?;
    Some(device as u8)
}

/// Equal blocks that follow one another.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Repeated {
    start: usize,
    /// How long each is.
    length: usize,
    count: usize,
    /// How much of the next one is equal.
    more: usize,
}

impl Repeated {
    const fn span(&self) -> Range<usize> {
        self.start..self.start + self.length * self.count
    }
}

/// The blocks that cover most; of several such lengths, the shortest blocks.
fn repeated<T: PartialEq>(all: &[T]) -> Option<Repeated> {
    if all.len() > LONGEST {
        return None;
    }
    let mut best: Option<Repeated> = None;
    for length in 2..=all.len() / LEAST {
        let mut at = 0;
        while at + length < all.len() {
            let pairs = all[at..].iter().zip(&all[at + length..]);
            let equal = pairs.take_while(|(one, next)| one == next).count();
            let found = Repeated {
                start: at,
                length,
                count: 1 + equal / length,
                more: equal % length,
            };
            let covers = |found: &Repeated| found.span().len();
            if found.count >= LEAST
                && best
                    .as_ref()
                    .is_none_or(|best| covers(&found) > covers(best))
            {
                best = Some(found);
            }
            at += equal + 1;
        }
    }
    best.filter(|found| {
        let block = &all[found.start..found.start + found.length];
        let is_one_kernel = block.iter().all(|kernel| *kernel == block[0]);
        !is_one_kernel && found.span().len() as f64 >= PART * all.len() as f64
    })
}

fn summed(found: &Repeated, iterations: &[&[Ran]], of: u64, strings: &Strings) -> Blocks {
    let sum = |range: Range<usize>| -> u64 {
        let of_one = |iteration: &&[Ran]| {
            iteration[range.clone()]
                .iter()
                .map(|ran| ran.ns)
                .sum::<u64>()
        };
        iterations.iter().map(of_one).sum()
    };
    let (span, all) = (found.span(), iterations[0].len());
    let starts = || span.clone().step_by(found.length);
    let kernel = |at: usize| {
        let ran = iterations[0][found.start + at];
        BlockKernel {
            name: kernel_name::short(&kernel_name::full(strings.get(ran.name))),
            ns: starts().map(|start| sum(start + at..start + at + 1)).sum(),
        }
    };
    Blocks {
        kernels: (0..found.length).map(kernel).collect(),
        blocks: starts()
            .map(|start| sum(start..start + found.length))
            .collect(),
        partly: (2 * found.more >= found.length).then_some(found.more),
        before: Outside {
            kernels: span.start,
            ns: sum(0..span.start),
        },
        behind: Outside {
            kernels: all - span.end,
            ns: sum(span.end..all),
        },
        iterations: iterations.len() as u64,
        of,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<(usize, usize, usize, usize)> {
        let found = repeated(text.as_bytes())?;
        Some((found.start, found.length, found.count, found.more))
    }

    #[test]
    fn blocks_are_found_between_what_is_before_and_behind() {
        assert_eq!(found("eabcabcabcabch"), Some((1, 3, 4, 0)));
        // What follows begins like a block.
        assert_eq!(found("abcdabcdabcdabch"), Some((0, 4, 3, 3)));
        // A kernel that repeats in the block is no block.
        assert_eq!(found("xabbbcabbbcabbbcy"), Some((1, 5, 3, 0)));
        // Of blocks of one and of two layers the shorter.
        assert_eq!(found("abababababab"), Some((0, 2, 6, 0)));
    }

    #[test]
    fn what_is_none_is_not_found() {
        for none in [
            "",
            "a",
            "abcabc",
            "aaaaaaaa",
            "abcdefgh",
            "abababxxyyzzuuvvwwqqrr",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
        assert_eq!(repeated(&[1, 2].repeat(LONGEST)), None);
    }

    /// Iterations of these kernels, a letter each, which take as many nanoseconds as their place says.
    fn of(iterations: &[&str]) -> Option<Blocks> {
        let mut tally = BlockTally::default();
        for (place, kernels) in iterations.iter().enumerate() {
            // Those of several streams are not in their order.
            for (at, kernel) in kernels.bytes().enumerate().rev() {
                let start = (1000 * place + at) as u64;
                tally.add(0, place, start, kernel.into(), at as u64 + 1);
                if at == 0 {
                    tally.add(1, place, start, kernel.into(), 1);
                }
            }
        }
        tally.finish(&vec![true; iterations.len()], &Strings::default())
    }

    #[test]
    fn times_are_of_the_iterations_that_most_are_like() {
        let blocks = of(&["xyzxyz", "eabababf", "eabababf"]).unwrap();
        assert_eq!(blocks.blocks, [2 * (2 + 3), 2 * (4 + 5), 2 * (6 + 7)]);
        let kernels: Vec<_> = blocks.kernels.iter().map(|kernel| kernel.ns).collect();
        assert_eq!(kernels, [2 * (2 + 4 + 6), 2 * (3 + 5 + 7)]);
        let outside = [blocks.before, blocks.behind].map(|one| (one.kernels, one.ns));
        assert_eq!(outside, [(1, 2), (1, 2 * 8)]);
        assert_eq!((blocks.iterations, blocks.of), (2, 3));
        assert_eq!((blocks.all(), blocks.mean()), (2 * 36, 9));
        assert_eq!(blocks.partly, None);
        // Of two kinds that are as frequent the first.
        assert_eq!(of(&["abcabcabc", "ababab"]).unwrap().kernels.len(), 3);
        assert_eq!(of(&["abcabc", "abcabc", "ababab"]), None);
    }
}
