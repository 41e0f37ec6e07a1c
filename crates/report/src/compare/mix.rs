//! Comparison of the batches of two runs. A difference between their batches can explain a difference between their
//! times.

use std::collections::BTreeMap;

use tllmprof_record::{Batch, Phase};

use super::pace::Pace;
use crate::batches::size_class;
use crate::numbers::bootstrap::Statistic;
use crate::numbers::units::{Rate, Share};

/// Limit for the distance between the batches of two runs: 5 % of the iterations. The distance is the share of
/// iterations that would have to move to another class (see [`apart`]). A difference between the batches is reported
/// only if the distance exceeds the sum of this limit and the distance that chance may cause.
const MAX_SILENT_DISTANCE: f64 = 0.05;

/// The iterations of a run whose batches are known ("mix" of batches).
struct Mix<'a> {
    /// Duration of each iteration in nanoseconds, and the iteration's batch.
    known: Vec<(f64, &'a Batch)>,
}

impl<'a> Mix<'a> {
    fn new(pace: &'a Pace) -> Self {
        let all = pace.durations.iter().zip(&pace.batches);
        let known = all.filter_map(|(duration, batch)| Some((*duration, batch.as_ref()?)));
        Self {
            known: known.collect(),
        }
    }

    fn in_phase(&self, phase: Phase) -> Self {
        let known = self
            .known
            .iter()
            .filter(|(_, batch)| batch.phase() == phase);
        Self {
            known: known.copied().collect(),
        }
    }

    fn count(&self) -> f64 {
        self.known.len() as f64
    }

    /// Returns the share of iterations for which `holds` is true, from 0 to 1.
    fn share(&self, holds: impl Fn(&Batch) -> bool) -> f64 {
        let some = self.known.iter().filter(|(_, batch)| holds(batch));
        some.count() as f64 / self.count().max(1.0)
    }

    fn tokens(&self) -> f64 {
        let tokens = self.known.iter().map(|(_, batch)| f64::from(batch.tokens));
        tokens.sum::<f64>() / self.count().max(1.0)
    }
}

/// Returns the distance between the batches of two runs, from 0 to 1. It is the share of one run's iterations that
/// would have to change their class to make the shares of all classes equal in both runs. Returns `None` if the
/// distance is negligible or may be chance. `class` returns a batch's class.
fn apart(sides: [&Mix<'_>; 2], class: impl Fn(&Batch) -> usize) -> Option<f64> {
    let mut classes: BTreeMap<usize, [f64; 2]> = BTreeMap::new();
    for (side, mix) in sides.iter().enumerate() {
        for (_, batch) in &mix.known {
            classes.entry(class(batch)).or_default()[side] += 1.0 / mix.count();
        }
    }
    let apart = classes.values().map(|[a, b]| (a - b).abs()).sum::<f64>() / 2.0;
    let [base, other] = sides.map(Mix::count);
    let chance = 0.5 * (classes.len().saturating_sub(1) as f64 * (1.0 / base + 1.0 / other)).sqrt();
    (apart > MAX_SILENT_DISTANCE + chance).then_some(apart)
}

/// Minimum share of the other run's batches whose class (phase and size) also occurs in the base.
/// If the share is smaller, the effect of the batches on the step time is not estimated.
const MIN_COVERED_SHARE: f64 = 0.9;

impl Mix<'_> {
    /// Returns the number of iterations and their total time in nanoseconds, by phase and size
    /// class of the batch.
    fn classes(&self) -> BTreeMap<(Phase, usize), (f64, f64)> {
        let mut classes: BTreeMap<_, (f64, f64)> = BTreeMap::new();
        for (duration, batch) in &self.known {
            let class = (batch.phase(), size_class(batch.tokens));
            let (count, time) = classes.entry(class).or_default();
            *count += 1.0;
            *time += duration;
        }
        classes
    }

    /// Returns the relative change of the mean step time that this run would show with the batches
    /// of `other`: each class of batches keeps its mean time, but is as frequent as in `other`.
    /// Returns `None` if too few of `other`'s batches belong to classes that this run has.
    fn with_mix_of(&self, other: &Self) -> Option<f64> {
        let own = self.classes();
        let (mut count, mut time) = (0.0, 0.0);
        for (class, (many, _)) in other.classes() {
            if let Some((of, took)) = own.get(&class) {
                count += many;
                time += many * took / of;
            }
        }
        let took: f64 = self.known.iter().map(|(duration, _)| duration).sum();
        (count >= MIN_COVERED_SHARE * other.count())
            .then(|| (time / count) / (took / self.count()) - 1.0)
    }
}

/// Returns notes on the differences between the batches of two runs: in the shares of the phases,
/// and in the numbers of tokens within a phase. If there are differences, a further note estimates
/// their effect on the base's mean step time.
pub(crate) fn differences(paces: [&Pace; 2]) -> Vec<String> {
    let [base, other] = paces.map(Mix::new);
    let mut notes = Vec::new();
    if apart([&base, &other], |batch| batch.phase() as usize).is_some() {
        let shares = Phase::ALL.map(|phase| {
            let of = |mix: &Mix<'_>| mix.share(|batch| batch.phase() == phase);
            (phase.name(), of(&base), of(&other))
        });
        let far = |(_, base, other): &(&str, f64, f64)| (base - other).abs();
        let most = shares.iter().max_by(|a, b| far(a).total_cmp(&far(b)));
        notes.extend(most.map(|(name, base, other)| {
            let (base, other) = (Share(*base), Share(*other));
            format!("batches differ, so times may: {base} and {other} are {name}")
        }));
    }
    let sizes = Phase::ALL.into_iter().filter_map(|phase| {
        let [base, other] = [base.in_phase(phase), other.in_phase(phase)];
        let apart = apart([&base, &other], |batch| size_class(batch.tokens))?;
        let [base, other] = [base, other].map(|mix| Rate(mix.tokens()));
        let name = phase.name();
        let note = format!("{name} batches differ, so times may: {base} and {other} tokens a step");
        Some((apart, note))
    });
    let most = sizes.max_by(|a, b| a.0.total_cmp(&b.0));
    notes.extend(most.map(|(_, note)| note));
    if !notes.is_empty()
        && let Some(longer) = base.with_mix_of(&other)
    {
        let (longer, part) = match longer < 0.0 {
            true => ("shorter", -longer),
            false => ("longer", longer),
        };
        notes.push(format!(
            "with the batches of OTHER, steps of BASE would be {} {longer} in the mean",
            Share(part)
        ));
    }
    notes
}

/// Returns the durations of both runs' iterations by phase of the batch, for phases in which both runs have enough
/// iterations for a mean. The result is empty if all known batches of both runs are in the same phase.
pub(crate) fn by_phase(paces: [&Pace; 2]) -> Vec<(Phase, [Vec<f64>; 2])> {
    let mixes = paces.map(Mix::new);
    let all = Phase::ALL.map(|phase| (phase, mixes.each_ref().map(|mix| mix.in_phase(phase))));
    let there = all
        .iter()
        .filter(|(_, mixes)| mixes.iter().any(|mix| !mix.known.is_empty()));
    if there.count() < 2 {
        return Vec::new();
    }
    let is_enough = |mix: &Mix<'_>| mix.known.len() >= Statistic::Mean.least();
    let both = all
        .into_iter()
        .filter(|(_, mixes)| mixes.iter().all(is_enough));
    let durations = |mix: Mix<'_>| mix.known.iter().map(|(duration, _)| *duration).collect();
    both.map(|(phase, mixes)| (phase, mixes.map(durations)))
        .collect()
}
