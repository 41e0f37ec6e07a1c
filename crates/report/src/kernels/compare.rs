//! Which kernels take longer, or are new.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{KernelTotal, Kernels};
use crate::events::kernel_name;
use crate::numbers::parts::{Part, PartChange, change};

/// How many kernels are shown, those that differ most first.
const KERNELS: usize = 20;

/// Whether it is known of both runs how long kernels took in iterations.
pub fn are_comparable(runs: [&Kernels; 2]) -> bool {
    (runs.iter()).all(|kernels| kernels.steps() > 0 && kernels.has_times())
}

/// The kernels that differ most, by what they take in an iteration.
pub fn changes(runs: [&Kernels; 2]) -> Vec<PartChange> {
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
    all.truncate(KERNELS);
    all.into_iter()
        .map(|(name, sides, base, other)| PartChange {
            name: name.to_owned(),
            label: kernel_name::short(name),
            base,
            other,
            change: change(sides.map(|kernel| kernel.map(part)), steps),
        })
        .collect()
}

fn part(kernel: &KernelTotal) -> Part<'_> {
    Part {
        ns: kernel.total,
        by_step: kernel.by_step.as_deref().map(Cow::Borrowed),
    }
}
