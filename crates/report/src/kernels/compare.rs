//! Comparison of the kernels of two runs. It finds kernels that take longer, and kernels that only
//! one run has.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{KernelTotal, Kernels};
use crate::events::kernel_name;
use crate::numbers::parts::{Part, PartChange, are_few, change};

/// Maximum number of kernels in the comparison. If there are more, the comparison shows those whose time per iteration
/// differs most.
const MAX_KERNELS: usize = 20;

/// Returns true if both runs recorded when kernels ran, in at least one iteration.
pub(crate) fn are_comparable(runs: [&Kernels; 2]) -> bool {
    (runs.iter()).all(|kernels| kernels.steps() > 0 && kernels.has_times())
}

/// Returns the kernels whose time per iteration differs most between the runs, and the kernels whose names are in
/// `asked`. Returns no kernels if the runs are not comparable (see [`are_comparable`]).
pub(crate) fn changes(runs: [&Kernels; 2], asked: &[&str]) -> Vec<PartChange> {
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
    let mut by_name: Vec<_> = by_name.into_iter().collect();
    pair_by_other_names(&mut by_name);
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
            is_few: are_few(steps),
        })
        .collect()
}

/// Joins two rows of different runs if their names are forms of the same kernel name that different demanglers wrote.
/// Only rows that one run lacks are joined, and only if each run has exactly one such row for that kernel name.
fn pair_by_other_names(rows: &mut Vec<(&str, [Option<&KernelTotal>; 2])>) {
    let mut lonely: BTreeMap<String, [Vec<usize>; 2]> = BTreeMap::new();
    for (place, (name, sides)) in rows.iter().enumerate() {
        if let Some(side) = sides.iter().position(Option::is_none) {
            let of_key = lonely.entry(kernel_name::comparable(name)).or_default();
            of_key[1 - side].push(place);
        }
    }
    let mut paired = Vec::new();
    for sides in lonely.into_values() {
        if let [[base], [other]] = sides.each_ref().map(Vec::as_slice) {
            rows[*base].1[1] = rows[*other].1[1];
            paired.push(*other);
        }
    }
    paired.sort_unstable();
    for place in paired.into_iter().rev() {
        rows.remove(place);
    }
}

/// Returns the mean time of the kernel `name` per iteration, in nanoseconds; `None` if it is
/// unknown.
pub(crate) fn time(kernels: &Kernels, name: &str) -> Option<f64> {
    let exact = kernels.totals.iter().find(|kernel| kernel.name == name);
    let by_other_name = || {
        let key = kernel_name::comparable(name);
        let mut all = kernels.totals.iter();
        all.find(|kernel| kernel_name::comparable(&kernel.name) == key)
    };
    let kernel = exact.or_else(by_other_name)?;
    let is_known = kernels.steps() > 0 && kernels.has_times();
    is_known.then(|| kernel.total as f64 / kernels.steps() as f64)
}

fn part(kernel: &KernelTotal) -> Part<'_> {
    Part {
        ns: kernel.total,
        by_step: kernel.by_step.as_deref().map(Cow::Borrowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_paired_if_one_of_each_side_has_the_name() {
        let kernel = |name: &str| KernelTotal {
            name: name.to_owned(),
            short_name: kernel_name::short(name),
            count: 1,
            total: 1,
            longest: 1,
            shortest: 1,
            by_step: None,
        };
        let (ours, theirs) = (kernel("k<2>(int)"), kernel("void k<(int)2>(T1)"));
        let (new, gone) = (kernel("new"), kernel("gone"));
        let overloads = [kernel("f(int)"), kernel("f(char)"), kernel("void f(int)")];
        let mut rows: Vec<(&str, [Option<&KernelTotal>; 2])> = vec![
            (&ours.name, [Some(&ours), None]),
            (&theirs.name, [None, Some(&theirs)]),
            (&new.name, [None, Some(&new)]),
            (&gone.name, [Some(&gone), None]),
            (&overloads[0].name, [Some(&overloads[0]), None]),
            (&overloads[1].name, [Some(&overloads[1]), None]),
            (&overloads[2].name, [None, Some(&overloads[2])]),
        ];
        pair_by_other_names(&mut rows);
        assert_eq!(rows.len(), 6);
        let [Some(base), Some(other)] = rows[0].1 else {
            panic!("{}", rows[0].0);
        };
        assert_eq!([&base.name, &other.name], [&ours.name, &theirs.name]);
        assert!(
            rows[1..]
                .iter()
                .all(|(_, sides)| sides.iter().any(Option::is_none))
        );
    }
}
