//! Finds blocks of kernels that repeat within an iteration. The blocks are usually the layers of a
//! model, so layers can be shown even if the record does not contain their names.

use std::collections::HashMap;
use std::ops::Range;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{StringId, Strings};

use crate::events::kernel_name;

/// Maximum number of kernels to analyze, in all iterations together. If there are more kernels, no blocks are found.
const MAX_KERNELS: usize = 1 << 20;
/// Maximum number of kernels of one iteration. An iteration with more kernels is not analyzed.
const MAX_KERNELS_IN_ITERATION: usize = 1 << 12;
/// Minimum number of equal blocks in an iteration. With fewer, the report shows no blocks.
const MIN_BLOCKS: usize = 3;
/// Minimum share of an iteration's kernels that the blocks must cover, as a fraction. With a smaller share, the report
/// shows no blocks.
const MIN_SHARE: f64 = 0.5;

/// Equal blocks of kernels that follow one another in an iteration. Usually each block is one layer of a model. Two
/// blocks are equal if their kernels have the same names in the same order. Iterations with the same sequence of
/// kernels are analyzed together, and only the most frequent sequence is used.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuBlocks")]
pub struct Blocks {
    /// The total time of each block over the analyzed iterations, in the order in which the blocks ran.
    #[serde(rename = "block_ns")]
    pub blocks: Vec<u64>,
    /// The mean time of one block in one iteration.
    #[serde(rename = "mean_ns")]
    pub mean: u64,
    /// The share of the blocks in the total time of the kernels of the analyzed iterations.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
    /// The kernels of one block, in the order of their starts.
    pub kernels: Vec<BlockKernel>,
    /// The number of kernels after the last block that match the beginning of one more block; `null` if they match
    /// less than half of a block.
    #[schemars(extend("unit" = "kernels"))]
    pub partly: Option<usize>,
    /// The kernels before the first block of an iteration.
    pub before: Outside,
    /// The kernels after the last block of an iteration.
    pub behind: Outside,
    /// The number of analyzed iterations: those with the most frequent sequence of kernels.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The number of iterations in which kernels were recorded.
    #[schemars(extend("unit" = "iterations"))]
    pub of: u64,
}

/// A kernel of a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuBlockKernel")]
pub struct BlockKernel {
    /// The name of the kernel, without parameters and namespaces.
    #[serde(rename = "short_name")]
    pub name: String,
    /// The total time of this kernel in all blocks of all analyzed iterations.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
}

/// The kernels of an iteration that are before the first block or after the last one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuOutsideBlocks")]
pub struct Outside {
    /// The number of kernels before the first block, or after the last one, in one iteration.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: usize,
    /// The total time of the kernels before the first block, or after the last one, in all analyzed iterations.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
}

impl Blocks {
    /// Returns the total time of all kernels of the analyzed iterations, in nanoseconds.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.before.ns + self.blocks.iter().sum::<u64>() + self.behind.ns
    }
}

/// One execution of a kernel. `place` is the index of the iteration in which the kernel began, and times
/// are in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct KernelRun {
    device: u8,
    place: u32,
    start: u64,
    name: StringId,
    ns: u64,
}

/// Collects the kernels of iterations during a pass over a record, to find blocks that repeat.
#[derive(Debug, Default)]
pub(crate) struct BlockTally {
    ran: Vec<KernelRun>,
    is_too_much: bool,
}

impl BlockTally {
    /// Adds a kernel. `place` is the index of the iteration in which the kernel began.
    pub(crate) fn add(&mut self, device: u8, place: usize, start: u64, name: StringId, ns: u64) {
        if self.ran.len() >= MAX_KERNELS {
            self.is_too_much = true;
            return;
        }
        self.ran.push(KernelRun {
            device,
            place: place as u32,
            start,
            name,
            ns,
        });
    }

    /// Returns the repeated blocks of kernels, or `None` if there are none. `is_inside` has an entry for each
    /// iteration of the record: true if the iteration has recorded kernels and the report's figures include it.
    pub(crate) fn finish(mut self, is_inside: &[bool], strings: &Strings) -> Option<Blocks> {
        // If kernels were dropped because of the limit, no iteration is known to have all its kernels, so blocks
        // cannot be found.
        if self.is_too_much {
            return None;
        }
        self.ran.retain(|ran| is_inside[ran.place as usize]);
        let device = busiest(&self.ran)?;
        self.ran.retain(|ran| ran.device == device);
        self.ran.sort_by_key(|ran| (ran.place, ran.start));
        let mut kinds: HashMap<Vec<StringId>, Vec<&[KernelRun]>> = HashMap::new();
        for iteration in self.ran.chunk_by(|a, b| a.place == b.place) {
            let names = iteration.iter().map(|ran| ran.name).collect();
            kinds.entry(names).or_default().push(iteration);
        }
        let of = is_inside.iter().filter(|inside| **inside).count() as u64;
        // Use the sequence of kernels that the most iterations have. Of equally frequent sequences,
        // use the one that occurs first.
        let (names, iterations) = kinds
            .iter()
            .max_by_key(|(_, iterations)| (iterations.len(), u32::MAX - iterations[0][0].place))?;
        let found = repeated(names)?;
        Some(summed(&found, iterations, of, strings))
    }
}

/// Returns the number of the GPU that ran the most kernels; `None` if there are no kernels.
fn busiest(ran: &[KernelRun]) -> Option<u8> {
    let mut count = [0_u32; 256];
    for ran in ran {
        count[usize::from(ran.device)] += 1;
    }
    let most = *count.iter().max()?;
    let device = count.iter().position(|count| *count == most && most > 0)?;
    Some(device as u8)
}

/// Equal blocks that follow one another in a sequence of kernels. `start` is the index of the first
/// kernel of the first block.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Repeated {
    start: usize,
    /// Number of kernels in one block.
    length: usize,
    count: usize,
    /// Number of kernels after the last block that match the beginning of one more block.
    more: usize,
}

impl Repeated {
    const fn span(&self) -> Range<usize> {
        self.start..self.start + self.length * self.count
    }
}

/// Returns the repeated blocks that cover the most elements. If blocks of several lengths cover equally many, the
/// shortest blocks are returned. Returns `None` if there are more than [`MAX_KERNELS_IN_ITERATION`] elements, if no
/// block occurs [`MIN_BLOCKS`] times in a row, if the best blocks cover less than [`MIN_SHARE`] of the elements, or if
/// all elements of the best block are equal.
fn repeated<T: PartialEq>(all: &[T]) -> Option<Repeated> {
    if all.len() > MAX_KERNELS_IN_ITERATION {
        return None;
    }
    let mut best: Option<Repeated> = None;
    for length in 2..=all.len() / MIN_BLOCKS {
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
            if found.count >= MIN_BLOCKS
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
        !is_one_kernel && found.span().len() as f64 >= MIN_SHARE * all.len() as f64
    })
}

fn summed(found: &Repeated, iterations: &[&[KernelRun]], of: u64, strings: &Strings) -> Blocks {
    let sum = |range: Range<usize>| -> u64 {
        let of_one = |iteration: &&[KernelRun]| {
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
    fn blocks_are_found_between_the_kernels_before_and_after() {
        assert_eq!(found("eabcabcabcabch"), Some((1, 3, 4, 0)));
        // The elements after the last complete block match the beginning of one more block.
        assert_eq!(found("abcdabcdabcdabch"), Some((0, 4, 3, 3)));
        // The element `b`, which repeats inside a block, is not a block of its own.
        assert_eq!(found("xabbbcabbbcabbbcy"), Some((1, 5, 3, 0)));
        // The blocks `ab` and the blocks `abab` cover equally many elements, so the shorter blocks are returned.
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
        assert_eq!(repeated(&[1, 2].repeat(MAX_KERNELS_IN_ITERATION)), None);
    }

    /// Returns the repeated blocks in iterations. Each letter is a kernel's name. The kernel at the
    /// index `n` of its iteration takes `n + 1` ns.
    fn blocks_of(iterations: &[&str]) -> Option<Blocks> {
        let mut tally = BlockTally::default();
        for (place, kernels) in iterations.iter().enumerate() {
            // Add the kernels in reverse order, because kernels of several streams are not in order
            // in a record, either.
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
        let blocks = blocks_of(&["xyzxyz", "eabababf", "eabababf"]).unwrap();
        assert_eq!(blocks.blocks, [2 * (2 + 3), 2 * (4 + 5), 2 * (6 + 7)]);
        let kernels: Vec<_> = blocks.kernels.iter().map(|kernel| kernel.ns).collect();
        assert_eq!(kernels, [2 * (2 + 4 + 6), 2 * (3 + 5 + 7)]);
        let outside = [blocks.before, blocks.behind].map(|one| (one.kernels, one.ns));
        assert_eq!(outside, [(1, 2), (1, 2 * 8)]);
        assert_eq!((blocks.iterations, blocks.of), (2, 3));
        assert_eq!((blocks.all(), blocks.mean), (2 * 36, 9));
        assert_eq!(blocks.partly, None);
        // If two sequences are equally frequent, the one that occurs first is used.
        assert_eq!(
            blocks_of(&["abcabcabc", "ababab"]).unwrap().kernels.len(),
            3
        );
        assert_eq!(blocks_of(&["abcabc", "abcabc", "ababab"]), None);
    }
}
