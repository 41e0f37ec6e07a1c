//! What a reader of a comparison has to know: where the runs are not alike.

use std::collections::BTreeMap;

use super::pace::Which;
use super::{Ranks, Side};
use crate::print::lines::short;
use crate::process::state::State;

/// Where two runs are not alike, but for their batches and GPU times.
pub fn of(runs: &[Ranks<'_>; 2], base: &Side, other: &Side, which: Which) -> Vec<String> {
    let mut notes = Vec::new();
    if base.rule != other.rule && base.iterations > 0 && other.iterations > 0 {
        notes.push(format!(
            "an iteration is not the same: {} and {}",
            base.rule, other.rule
        ));
    }
    let conditions = runs.each_ref().map(|run| {
        let mut all = run
            .values()
            .map(|process| process.facts.asked.condition.as_str());
        all.find(|condition| !condition.is_empty()).unwrap_or("all")
    });
    if conditions[0] != conditions[1] {
        let [base, other] = conditions;
        notes.push(format!("not the same iterations: {base}, and {other}"));
    }
    notes.extend(unlike(&base.command, &other.command));
    if !runs[0].keys().eq(runs[1].keys()) {
        let [base, other] = runs.each_ref().map(numbers);
        notes.push(format!("not the same ranks: {base} and {other}"));
    }
    let have_kernels = runs
        .iter()
        .flat_map(BTreeMap::values)
        .any(|process| process.kernels.window.is_some());
    match which {
        Which::WithoutKernels if have_kernels => {
            notes.push("iterations in which kernels were taken are left out".to_owned());
        }
        Which::WithKernels => {
            notes.push("kernels were taken in all of these, which stretches them".to_owned())
        }
        Which::All if have_kernels => {
            notes.push("kernels were taken in some of these, which stretches them".to_owned());
        }
        Which::WithoutKernels | Which::All => (),
    }
    for (name, run) in ["BASE", "OTHER"].into_iter().zip(runs) {
        if run
            .values()
            .any(|process| process.record.dropped > 0 || process.state() == State::Damaged)
        {
            notes.push(format!("{name} is not whole: see its report"));
        }
    }
    notes
}

/// Where two commands differ: the words from the first to the last that are not the same, and the option that they
/// belong to.
fn unlike(base: &str, other: &str) -> Option<String> {
    if base == other || base.is_empty() || other.is_empty() {
        return None;
    }
    let sides = [base, other].map(|side| side.split_whitespace().collect::<Vec<_>>());
    let [a, b] = &sides;
    let same = |(one, other): &(&&str, &&str)| one == other;
    let mut before = a.iter().zip(b).take_while(same).count();
    let most = a.len().min(b.len()) - before;
    let after = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take(most)
        .take_while(same)
        .count();
    if before > 0 && a[before - 1].starts_with('-') {
        before -= 1;
    }
    let [a, b] = sides.each_ref().map(|side| {
        match side.get(before..side.len() - after).unwrap_or_default() {
            [] => "nothing there".to_owned(),
            words => short(&words.join(" "), 25),
        }
    });
    Some(format!("the commands differ: {a} and {b}"))
}

/// The ranks of a run, as far as a line has room for them.
fn numbers(run: &Ranks<'_>) -> String {
    let shown: Vec<_> = run.keys().take(8).map(u64::to_string).collect();
    let more = if run.len() > shown.len() { " …" } else { "" };
    match shown.as_slice() {
        [] => "none".to_owned(),
        shown => shown.join(" ") + more,
    }
}
