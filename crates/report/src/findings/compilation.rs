//! The finding `compilation`: code is loaded or compiled in the steady state, as calls of the CUDA driver or samples in
//! torch.compile's compiler show.

use super::Judgement;
use super::evidence::{Evidence, Lost, MAX_NAMED, first_numbers};
use super::ledger::within;
use super::limits::EXTRA_WORK;
use super::recompiles::{Recompiles, START_UP};
use crate::events::facts::CallCount;
use crate::events::iteration::Iteration;
use crate::ledger::LedgerKind;
use crate::numbers::units::{Count, Share, Time};

/// Name of the finding `compilation`.
pub(crate) const RULE: &str = "compilation";

pub(super) fn when() -> String {
    format!(
        "iterations from {START_UP} on in which code is loaded or compiled take longer than the others by {EXTRA_WORK}"
    )
}

pub(super) fn judge(one: &Evidence<'_>) -> Judgement {
    let process = one.process;
    let recompiles = one.recompiles();
    let is_sampled = recompiles.iterations.range(START_UP..).next().is_some();
    if process.facts.origin.is_own()
        && !is_sampled
        && !process.facts.calls.iter().any(CallCount::compiles)
    {
        return Judgement::Unknown("the record does not have them".to_owned());
    }
    let compiles = |iteration: &Iteration| {
        let is_one =
            iteration.preparation.compilations > 0 || recompiles.iterations.contains(&iteration.n);
        iteration.n >= START_UP && is_one
    };
    let steps: Vec<_> = one
        .iterations()
        .filter(|iteration| compiles(iteration))
        .collect();
    if !one.iterations().any(|iteration| iteration.n >= START_UP) {
        return Judgement::Unknown(format!("no iteration from {START_UP} on was recorded"));
    }
    if steps.is_empty() {
        return Judgement::No("no call loads or compiles code after the start".to_owned());
    }
    let all = one.iterations().count();
    // If most iterations compile, there are too few iterations without compilation to compare them with. So use the
    // share of the calls that compile in the ledger (time by cause) instead, or the share of samples in torch.compile's
    // compiler if that is greater.
    let (share, longer, cost) = if steps.len() * 2 > all {
        // torch.compile's compiler makes many of the calls that compile. The two shares overlap, so do not add them.
        let calls = one.worked_share(LedgerKind::Compilation);
        let share = calls.max(recompiles.share);
        let cost = format!("for {} of the time", Share(share));
        (share, Lost::default(), cost)
    } else {
        let longer = one.longer(compiles);
        let share = one.share(longer.total);
        let each = Time(longer.total / steps.len() as u64);
        let cost = format!(
            "which take {each} longer each than the others: {} of the time",
            Share(share)
        );
        (share, longer, cost)
    };
    let evidence = format!(
        "{} in {} of {all} iterations ({}), {cost}{}",
        activity(one, &steps, recompiles),
        steps.len(),
        first_numbers(steps.iter().map(|iteration| iteration.n)),
        called_in(one, recompiles)
    );
    match EXTRA_WORK.are_reached(share, longer.of_slow) {
        true => Judgement::yes(evidence, share),
        false => Judgement::No(evidence),
    }
}

/// Returns a description of the activities that load or compile code in the iterations of `steps`.
fn activity(one: &Evidence<'_>, steps: &[&Iteration], recompiles: &Recompiles) -> String {
    let calls = steps
        .iter()
        .map(|iteration| iteration.preparation.compilations);
    let calls: u32 = calls.sum();
    let is_sampled = steps
        .iter()
        .any(|iteration| recompiles.iterations.contains(&iteration.n));
    let calls = match calls {
        0 => String::new(),
        _ => format!("{} of {}", Count(calls.into(), "call"), functions(one)),
    };
    match (is_sampled, &*calls) {
        (true, "") => "torch.compile compiles".to_owned(),
        (true, _) => format!("torch.compile compiles, and {calls}"),
        (false, _) => calls,
    }
}

/// Returns the names of the CUDA functions that load or compile code, the one with the most time first. At most
/// [`MAX_NAMED`] functions are named.
fn functions(one: &Evidence<'_>) -> String {
    let rows = &one.process.facts.calls;
    let mut calls: Vec<_> = (one.process.calls.calls.iter())
        .filter(|call| {
            rows.iter()
                .any(|row| row.compiles() && row.name == call.name)
        })
        .collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.total));
    let names = calls.iter().take(MAX_NAMED).map(|call| &*call.name);
    names.collect::<Vec<_>>().join(", ")
}

/// Returns text that names the function that calls torch.compile's code. If that function is not known, the text names
/// the function that makes the calls which load or compile code. The text is empty if samples show neither function.
fn called_in(one: &Evidence<'_>, recompiles: &Recompiles) -> String {
    if let Some(caller) = &recompiles.caller {
        return format!("; torch.compile's code is called by {caller}");
    }
    let paths = &one.process.ledger.details.claims.compiling_in;
    let path = paths.python.as_ref().or(paths.native.as_ref());
    path.map_or_else(String::new, |path| format!("; {}", within(path, paths)))
}
