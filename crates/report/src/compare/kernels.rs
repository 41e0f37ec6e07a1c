//! Which kernels take longer, or are new.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::bootstrap::{Change, Statistic, changes as series_changes};
use crate::kernels::KernelTotal;
use crate::process::Process;

/// How many kernels are shown, those that differ most first.
const KERNELS: usize = 20;

/// The kernels of one name in both runs.
#[derive(Debug)]
pub struct KernelChange {
    pub name: String,
    pub short_name: String,
    /// What they take in an iteration, in nanoseconds; 0 where there are none.
    pub base: f64,
    pub other: f64,
    /// `None` where one of the runs has none of them.
    pub change: Option<Change>,
}

/// In how many iterations kernels were taken.
pub fn steps(process: &Process) -> u64 {
    process.kernel_window.map_or(0, |sum| sum.iterations)
}

/// Whether it is known how long kernels took in iterations: a driver may not say.
pub fn has_times(process: &Process) -> bool {
    let sum = process.kernel_window.as_ref();
    sum.is_some_and(|sum| sum.iterations > 0 && sum.has_times())
}

/// The kernels that differ most, by what they take in an iteration.
pub fn changes(processes: [&Process; 2]) -> Vec<KernelChange> {
    let steps = processes.map(steps);
    if !processes.into_iter().all(has_times) {
        return Vec::new();
    }
    let mut by_name: BTreeMap<&str, [Option<&KernelTotal>; 2]> = BTreeMap::new();
    for (side, process) in processes.iter().enumerate() {
        for kernel in &process.kernels {
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
        .map(|(name, sides, base, other)| KernelChange {
            name: name.to_owned(),
            short_name: crate::kernel_name::short(name),
            base,
            other,
            change: change(sides.map(|kernel| kernel.map(Part::of)), steps),
        })
        .collect()
}

/// What kernels of one kind take.
#[derive(Debug)]
pub struct Part<'a> {
    pub ns: u64,
    /// In each iteration, by its place, which may be there more than once; `None`: that is not known.
    pub by_step: Option<Cow<'a, [(u32, u64)]>>,
}

impl<'a> Part<'a> {
    fn of(kernel: &'a KernelTotal) -> Self {
        Self {
            ns: kernel.total,
            by_step: kernel.by_step.as_deref().map(Cow::Borrowed),
        }
    }

    /// What they took in each iteration; `None` where that is not known, or was outside iterations.
    fn series(&self, steps: u64) -> Option<Vec<f64>> {
        let mut series = vec![0.0; usize::try_from(steps).ok()?];
        for (step, ns) in self.by_step.as_ref()?.iter() {
            *series.get_mut(*step as usize)? += *ns as f64;
        }
        series.iter().any(|ns| *ns > 0.0).then_some(series)
    }
}

/// How much a part of both runs differs; `None` where one of them lacks it.
pub fn change(sides: [Option<Part<'_>>; 2], steps: [u64; 2]) -> Option<Change> {
    let [Some(base), Some(other)] = sides else {
        return None;
    };
    match (base.series(steps[0]), other.series(steps[1])) {
        (Some(base), Some(other)) => Some(series_changes(&base, &other, &[Statistic::Mean])[0]),
        _ => {
            let relative =
                (other.ns as f64 / steps[1] as f64) / (base.ns as f64 / steps[0] as f64) - 1.0;
            Some(Change {
                relative,
                interval: None,
            })
        }
    }
}
