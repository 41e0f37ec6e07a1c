//! Findings on Python: garbage collections and the GIL.

use super::Judgement;
use super::evidence::{Evidence, Lost};
use super::limits::INTERRUPTION;
use crate::events::samples::GilHolder;
use crate::numbers::units::{Share, Time};
use crate::process::Process;

/// Name of the finding `gc`: Python's garbage collections take time.
pub(crate) const GC_RULE: &str = "gc";

pub(crate) fn gc_when() -> String {
    format!("collections take {INTERRUPTION}")
}

pub(crate) fn gil_when() -> String {
    format!("waits take {INTERRUPTION}")
}

pub(crate) fn gc(one: &Evidence<'_>) -> Judgement {
    let process = one.process;
    if process.python.gc.is_empty() && !is_set(process, "TLLM_PROFILE_RECORD_GC") {
        return without(one, "collections were not recorded");
    }
    let count: u64 = process.python.gc.iter().map(|gc| gc.count).sum();
    let longest = process
        .python
        .gc
        .iter()
        .map(|gc| gc.longest)
        .max()
        .unwrap_or(0);
    let what = format!("{count} collections, the longest {}", Time(longest));
    judge(one, &what, one.lost(|iteration| iteration.gc))
}

pub(crate) fn gil(one: &Evidence<'_>) -> Judgement {
    let process = one.process;
    let is_recorded = process.python.gil_wait.count > 0 || process.python.gil_hold.count > 0;
    if !is_recorded && !is_set(process, "TLLMPROF_GIL") {
        return without(one, "the GIL was not recorded");
    }
    let what = match holder(one) {
        Some(holder) => format!("waits for the GIL, held most by {holder}"),
        None => "waits for the GIL".to_owned(),
    };
    judge(one, &what, one.lost(|iteration| iteration.gil_wait))
}

/// Judges the rule on garbage collections or the rule on the GIL, for a process whose record lacks the data for that
/// rule. Returns `No` if a record of tllmprof shows that the process does not run Python, otherwise `Unknown` with the
/// reason `what`.
fn without(one: &Evidence<'_>, what: &str) -> Judgement {
    let facts = &one.process.facts;
    if facts.software.python.is_empty() && !facts.software.library.is_empty() {
        return Judgement::No("no Python".to_owned());
    }
    Judgement::Unknown(what.to_owned())
}

/// Returns the name of the thread that held the GIL for the longest time, among the threads that run no iterations. If
/// the thread's stacks were sampled, adds the function in which it held the GIL. Returns `None` if no such thread held
/// the GIL.
fn holder(one: &Evidence<'_>) -> Option<String> {
    let runs = |tid: &u32| one.iterations().any(|iteration| iteration.thread == *tid);
    let others = one
        .process
        .python
        .holds
        .iter()
        .filter(|(tid, _)| !runs(tid));
    let (tid, _) = others.max_by_key(|(_, held)| **held)?;
    let name = one.process.facts.thread(*tid);
    let functions = &one.process.stacks.sampled.gil_holders;
    Some(match functions.get(tid) {
        Some(GilHolder {
            function,
            share: Some(share),
        }) => format!("{name}, in {function} ({} of the samples)", Share(*share)),
        Some(GilHolder { function, .. }) => format!("{name}, in {function}"),
        None => name,
    })
}

fn judge(one: &Evidence<'_>, what: &str, lost: Lost) -> Judgement {
    let share = one.share(lost.total);
    let slow = match lost.slow {
        0 => String::new(),
        slow => format!("; to blame in {} of {slow} slow iterations", lost.hit),
    };
    let evidence = format!("{what}: {} of the time{slow}", Share(share));
    match INTERRUPTION.are_reached(share, lost.of_slow) {
        true => Judgement::yes(evidence, share),
        false => Judgement::No(evidence),
    }
}

/// Returns true if the environment variable `name` of the process has a value that means "on".
pub(crate) fn is_set(process: &Process, name: &str) -> bool {
    let value = process.facts.asked.settings.iter().find_map(|setting| {
        let (set, value) = setting.split_once('=')?;
        (set == name).then_some(value.trim())
    });
    value.is_some_and(|value| {
        ["1", "true", "yes", "on", "auto"]
            .iter()
            .any(|on| value.eq_ignore_ascii_case(on))
    })
}
