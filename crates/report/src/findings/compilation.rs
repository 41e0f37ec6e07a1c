//! The finding `compilation`: code is loaded or compiled in the steady state, as calls of the CUDA driver or samples in
//! compilers show.

use super::Judgement;
use super::evidence::{Evidence, Lost, MAX_NAMED, first_numbers};
use super::ledger::within;
use super::limits::EXTRA_WORK;
use super::recompiles::{Recompiles, START_UP, additional_function};
use crate::events::facts::CallCount;
use crate::events::iteration::Iteration;
use crate::events::origin::Data;
use crate::ledger::LedgerKind;
use crate::numbers::units::{Count, Share, Time};

/// Name of the finding `compilation`.
pub(crate) const RULE: &str = "compilation";

/// Minimum share of the time in which code is loaded or compiled, as a fraction, if no step is known. The report then
/// shows one stretch of time in place of iterations, which may contain a part of the program's start.
const MIN_SPAN_SHARE: f64 = 0.2;

/// Minimum share of the time that is spent in compilation, as a fraction. With a smaller share, the function in which
/// most of the time is spent does not count as the one that leads to the compiler.
const MIN_MOSTLY: f64 = 0.5;

pub(super) fn when() -> String {
    format!(
        "iterations from {START_UP} on in which code is loaded or compiled take longer than the others by {EXTRA_WORK}; where \
         the last iterations of a short run are reported, also earlier ones; where no step is known, over {} of the time",
        Share(MIN_SPAN_SHARE)
    )
}

pub(super) fn judge(one: &Evidence<'_>) -> Judgement {
    let process = one.process;
    let recompiles = one.recompiles();
    let from = recompiles.from;
    let is_sampled = recompiles.iterations.range(from..).next().is_some();
    let origin = &process.facts.origin;
    if origin.is_own() && !is_sampled && !process.facts.calls.iter().any(CallCount::compiles) {
        return Judgement::Unknown("the record does not have them".to_owned());
    }
    if origin.lacks(Data::Iterations) {
        return match origin.is_own() {
            true => judge_span(one, recompiles),
            false => Judgement::Unknown(Data::Iterations.missing().to_owned()),
        };
    }
    let compiles = |iteration: &Iteration| {
        let is_one =
            iteration.preparation.compilations > 0 || recompiles.iterations.contains(&iteration.n);
        iteration.n >= from && is_one
    };
    let steps: Vec<_> = one
        .iterations()
        .filter(|iteration| compiles(iteration))
        .collect();
    if !one.iterations().any(|iteration| iteration.n >= from) {
        return Judgement::Unknown(format!("no iteration from {from} on was recorded"));
    }
    if steps.is_empty() {
        return Judgement::No("no call loads or compiles code after the start".to_owned());
    }
    let all = one.iterations().count();
    // If most iterations compile, there are too few iterations without compilation to compare them with. So use the
    // share of the calls and of the samples in compilers instead.
    let (share, longer, cost) = if steps.len() * 2 > all {
        let share = compiling_share(one, recompiles);
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
        called_in(one, recompiles, compiles)
    );
    match EXTRA_WORK.are_reached(share, longer.of_slow) {
        true => Judgement::yes(evidence, share),
        false => Judgement::No(evidence),
    }
}

/// Judges the rule if no step is known. The report then shows one stretch of time in place of iterations. As there are
/// no iterations to compare, the share of calls and of samples in compilers decides.
fn judge_span(one: &Evidence<'_>, recompiles: &Recompiles) -> Judgement {
    let share = compiling_share(one, recompiles);
    let steps: Vec<_> = one.iterations().collect();
    let activity = match activity(one, &steps, recompiles) {
        none if none.is_empty() => {
            return Judgement::No("no code is loaded or compiled".to_owned());
        }
        some => some,
    };
    let evidence = format!(
        "{activity}, for {} of the time{}",
        Share(share),
        called_in(one, recompiles, |_| true)
    );
    match share >= MIN_SPAN_SHARE {
        true => Judgement::yes(evidence, share),
        false => Judgement::No(evidence),
    }
}

/// Returns the share of the time, as a fraction, in which calls or compilers load or compile code.
fn compiling_share(one: &Evidence<'_>, recompiles: &Recompiles) -> f64 {
    let calls = one.worked_share(LedgerKind::Compilation);
    // Samples in native compilers lie outside CUDA calls, so add these two shares. Compilers in Python make many of the
    // calls that compile, and run native compilers, so their share overlaps with this sum.
    let native = calls + recompiles.native_share;
    native.max(recompiles.share).min(1.0)
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
    match (recompiles.compiler.filter(|_| is_sampled), &*calls) {
        (Some(compiler), "") => compiler.activity.to_owned(),
        (Some(compiler), _) => format!("{}, and {calls}", compiler.activity),
        (None, _) => calls,
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

/// Returns text that names the function of the program that leads to the compiler, and the functions in which the
/// compiler spends its time. If no sample lies in a known compiler, the text names the function of the program that the
/// iterations for which `compiles` returns true have in addition to others, or the function that makes the calls which
/// load or compile code. The text is empty if samples show no such function. Iterations of the program's start are no
/// others, because they may compile, too. If there are no other iterations, the function in which the iterations spend
/// most of the time counts only if they compile for at least [`MIN_MOSTLY`] of it.
fn called_in(
    one: &Evidence<'_>,
    recompiles: &Recompiles,
    compiles: impl Fn(&Iteration) -> bool,
) -> String {
    let counted = || one.iterations().filter(|it| it.n >= recompiles.from);
    let has_others = counted().any(|iteration| !compiles(iteration));
    let time: u64 = counted().map(Iteration::busy).sum();
    let is_mostly = compiling_share(one, recompiles) >= MIN_MOSTLY * one.share(time);
    let is_known = has_others || is_mostly;
    let additional =
        || additional_function(one.process, recompiles.from, &compiles).filter(|_| is_known);
    if let Some(compiler) = recompiles.compiler {
        // Native stacks of a Python program name functions of libraries, so a Python function is preferred.
        let caller = match recompiles.share > 0.0 {
            true => recompiles.caller.clone(),
            false => additional().or_else(|| recompiles.caller.clone()),
        };
        if let Some(caller) = caller {
            let (code, parts) = (compiler.code, &recompiles.parts);
            return format!("; {code} is called by {caller}{parts}");
        }
    } else if let Some(function) = additional() {
        let time = match has_others {
            true => "the additional time",
            false => "most of the time",
        };
        return format!("; {time} is in {function}");
    }
    let paths = &one.process.ledger.details.claims.compiling_in;
    let path = paths.python.as_ref().or(paths.native.as_ref());
    path.map_or_else(String::new, |path| format!("; {}", within(path, paths)))
}
