//! Comparison of kernels: which take longer, or are new.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{KernelTotal, Kernels};
use crate::events::kernel_name;
use crate::numbers::parts::{Part, PartChange, change};

/// Maximum number of kernels to compare, those with the largest difference first.
const MAX_KERNELS: usize = 20;

/// Returns true if both runs have times of kernels in iterations.
pub fn are_comparable(runs: [&Kernels; 2]) -> bool {
    (runs.iter()).all(|kernels| kernels.steps() > 0 && kernels.has_times())
}

/// Returns the kernels with the largest difference of time in an iteration, and those whose names are in `asked`.
pub fn changes(runs: [&Kernels; 2], asked: &[&str]) -> Vec<PartChange> {
    let steps = runs.map(Kernels::steps);
    if !are_comparable(runs) {
        return Vec::new();
    }
    let mut by_name: BTreeMap<&str, [Option<&KernelTotal>; 2]> = BTreeMap::new();
    for (side, kernels) in runs.iter().enumerate() {
        for kernel in &kernels.totals {
            by_name.entry(&kernel.name).or_default()[side] = Some(kernel);
        }
    }
    let a_step = |side: usize, kernel: Option<&KernelTotal>| {
        kernel.map_or(0.0, |kernel| kernel.total as f64 / steps[side] as f64)
    };
    let mut all: Vec<_> = by_name
        .into_iter()
        .map(|(name, [base, other])| (name, [base, other], a_step(0, base), a_step(1, other)))
        .collect();
    all.sort_by(|a, b| (b.3 - b.2).abs().total_cmp(&(a.3 - a.2).abs()));
    let is_asked = |name: &str| {
        asked
            .iter()
            .any(|one| *one == name || *one == kernel_name::short(name))
    };
    let all = (0..).zip(all);
    let shown = all.filter(|(place, (name, ..))| *place < MAX_KERNELS || is_asked(name));
    shown
        .map(|(_, row)| row)
        .map(|(name, sides, base, other)| PartChange {
            name: name.to_owned(),
            label: kernel_name::short(name),
            base,
            other,
            counts: Some([0, 1].map(|side| {
                let count = sides[side].map_or(0, |kernel| kernel.count);
                count as f64 / steps[side] as f64
            })),
            change: change(sides.map(|kernel| kernel.map(part)), steps),
        })
        .collect()
}

/// Returns the time of a kernel in an iteration, in nanoseconds; `None` if it is not known.
pub fn time(kernels: &Kernels, name: &str) -> Option<f64> {
    let kernel = kernels.totals.iter().find(|kernel| kernel.name == name)?;
    let is_known = kernels.steps() > 0 && kernels.has_times();
    is_known.then(|| kernel.total as f64 / kernels.steps() as f64)
}

fn part(kernel: &KernelTotal) -> Part<'_> {
    Part {
        ns: kernel.total,
        by_step: kernel.by_step.as_deref().map(Cow::Borrowed),
    }
}
