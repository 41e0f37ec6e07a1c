//! Blocks of kernels that repeat within an iteration: as a rule the layers of a model, where nothing says which these are.

use std::collections::HashMap;
use std::ops::Range;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{StringId, Strings};

use crate::events::kernel_name;

/// How many kernels are looked at in all, and in an iteration.
const LIMIT: usize = 1 << 20;
const LONGEST: usize = 1 << 12;
/// How many equal blocks make it a repetition, and what part of an iteration's kernels they have to be.
const LEAST: usize = 3;
const PART: f64 = 0.5;

/// Equal blocks of kernels that follow one another in an iteration, by the kernels' names: as a rule the layers of a model. Of the
/// iterations whose kernels are called alike, one by one; of several such kinds, of the one that most iterations are.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuBlocks")]
pub struct Blocks {
    /// How long each block took in these iterations, in their order.
    #[serde(rename = "block_ns")]
    pub blocks: Vec<u64>,
    /// How long one takes in one iteration, in the mean.
    #[serde(rename = "mean_ns")]
    pub mean: u64,
    /// What part of the time of these iterations' kernels the blocks are.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
    /// A block's kernels, in their order.
    pub kernels: Vec<BlockKernel>,
    /// How many kernels of one more block are equal to these, if at least half of them; `null`: there is none.
    #[schemars(extend("unit" = "kernels"))]
    pub partly: Option<usize>,
    /// What comes before the blocks.
    pub before: Outside,
    /// What comes behind them.
    pub behind: Outside,
    /// The iterations that this is of.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The iterations in which kernels were recorded.
    #[schemars(extend("unit" = "iterations"))]
    pub of: u64,
}

/// A kernel of a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuBlockKernel")]
pub struct BlockKernel {
    /// Without what it takes.
    #[serde(rename = "short_name")]
    pub name: String,
    /// How long it took in all blocks of these iterations.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
}

/// Kernels of an iteration that are in no block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuOutsideBlocks")]
pub struct Outside {
    /// How many there are in an iteration.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: usize,
    /// How long they took in these iterations.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
}

impl Blocks {
    /// What all kernels of these iterations took.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.before.ns + self.blocks.iter().sum::<u64>() + self.behind.ns
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
    let mut found = Blocks {
        mean: 0,
        share: 0.0,
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
    };
    let ns: u64 = found.blocks.iter().sum();
    found.mean = ns / (found.blocks.len() as u64 * found.iterations).max(1);
    found.share = ns as f64 / found.all().max(1) as f64;
    found
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
        assert_eq!((blocks.all(), blocks.mean), (2 * 36, 9));
        assert_eq!(blocks.partly, None);
        // Of two kinds that are as frequent the first.
        assert_eq!(of(&["abcabcabc", "ababab"]).unwrap().kernels.len(), 3);
        assert_eq!(of(&["abcabc", "abcabc", "ababab"]), None);
    }
}
