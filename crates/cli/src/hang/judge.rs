//! Makes the verdict of `tllmprof hang`: from the states of all ranks, it states if they are stuck, and why.

use std::collections::BTreeSet;

use tllmprof_report::Time;

use super::behind::behind;
use super::cause::StuckCause;
use super::mismatch::{captured_mismatch, mismatch};
use super::state::{Life, RankState};
use super::verdict::{Answer, HangVerdict, VerdictKind};
use super::wording::{is_or_are, last_of, names};

/// Minimum time, in nanoseconds, for which ranks must have been quiet before they are called stuck. A rank is quiet
/// while no step or collective begins or ends.
pub(crate) const LEAST_QUIET_NS: u64 = 3_000_000_000;
/// Minimum time, in nanoseconds, for which a rank that waits for the GPU must have been quiet before the ranks are
/// called stuck. This limit is for ranks that have all entered the same collectives. A shorter wait may be a long
/// prefill.
const LONGEST_PREFILL_NS: u64 = 10_000_000_000;
/// Minimum time for which a rank that waits for the GPU must have been quiet before the ranks are called stuck, as a
/// multiple of the longest recent step. The longer of this time and [`LONGEST_PREFILL_NS`] applies.
const LONGER_THAN_STEPS: u64 = 2;
/// Maximum time, in nanoseconds, for which a rank whose thread uses the processor counts as working while no step or
/// collective begins or ends. After this time, the thread may be waiting in a busy loop.
const LONGEST_WORK_NS: u64 = 60_000_000_000;
/// Maximum time for which a rank whose thread uses the processor counts as working, as a multiple of the longest recent
/// step. The longer of this time and [`LONGEST_WORK_NS`] applies.
const LONGER_WORK_THAN_STEPS: u64 = 10;

/// Returns the verdict on all ranks. Each group of ranks that share communicators gets a separate verdict. The worst of
/// these verdicts is returned: `stuck` is the worst, followed by a verdict that too little is known.
pub(crate) fn judge(ranks: &[RankState]) -> HangVerdict {
    let mut verdicts: Vec<_> = judge_apart(ranks).map(|(_, verdict)| verdict).collect();
    // A verdict on processes that have ended is dropped if any other process moves or is itself stuck.
    let is_gone = |verdict: &HangVerdict| {
        let mut members = verdict.ranks.iter();
        members.all(|rank| ranks[*rank].life == Life::Gone)
    };
    let is_left = ranks.iter().any(|rank| rank.life != Life::Gone);
    let moves = verdicts.iter().any(|one| one.kind == VerdictKind::Moves);
    if is_left
        && (moves
            || verdicts
                .iter()
                .any(|one| one.answer == Answer::Stuck && !is_gone(one)))
    {
        verdicts.retain(|one| !is_gone(one));
    }
    let weight = |verdict: &HangVerdict| match (verdict.answer, verdict.kind) {
        (Answer::Stuck, _) => 0,
        (Answer::CannotTell, _) => 1,
        (Answer::NotStuck, VerdictKind::Busy) => 2,
        (Answer::NotStuck, VerdictKind::Moves) => 3,
        (Answer::NotStuck, VerdictKind::Idle) => 4,
        (Answer::NotStuck, _) => 5,
    };
    let worst = verdicts.into_iter().min_by_key(weight);
    worst.unwrap_or_else(|| {
        let text = "no rank is known".to_owned();
        HangVerdict::new(Answer::CannotTell, VerdictKind::Unclear, Vec::new(), text)
    })
}

/// Returns a verdict for each group of ranks; ranks of different groups share no communicator. Each verdict comes with
/// the ranks of the group, as indices into the list of all ranks.
pub(crate) fn judge_apart(ranks: &[RankState]) -> impl Iterator<Item = (Vec<usize>, HangVerdict)> {
    parts(ranks).into_iter().map(|part| {
        let verdict = judge_part(ranks, &part);
        (part, verdict)
    })
}

/// Groups the ranks: two ranks are in the same group if they share a communicator, directly or through other ranks.
fn parts(ranks: &[RankState]) -> Vec<Vec<usize>> {
    let mut parts: Vec<(BTreeSet<u64>, Vec<usize>)> = Vec::new();
    for (index, rank) in ranks.iter().enumerate() {
        let ids = rank.ring.communicators.iter().map(|one| one.id);
        let called = rank.ring.collectives.iter().map(|call| call.communicator);
        let mut ids: BTreeSet<_> = ids.chain(called).filter(|id| *id != 0).collect();
        let mut joined = vec![index];
        parts.retain(|(others, members)| {
            let is_other = others.is_disjoint(&ids);
            if !is_other {
                ids.extend(others);
                joined.extend(members);
            }
            is_other
        });
        joined.sort_unstable();
        parts.push((ids, joined));
    }
    parts.into_iter().map(|(_, members)| members).collect()
}

fn judge_part(ranks: &[RankState], part: &[usize]) -> HangVerdict {
    let all = || part.iter().map(|index| &ranks[*index]);
    let where_life = |life| {
        let its = part.iter().copied();
        its.filter(|index| ranks[*index].life == life)
            .collect::<Vec<_>>()
    };
    let stopped = where_life(Life::Stopped);
    if let [first, ..] = stopped[..] {
        let are = is_or_are(&stopped);
        let text = format!(
            "{} {are} stopped by a signal: kill -CONT {} lets it go on",
            names(ranks, &stopped),
            ranks[first].pid
        );
        return HangVerdict::new(Answer::Stuck, VerdictKind::Stopped, stopped, text);
    }
    let held = where_life(Life::Held).into_iter();
    let held: Vec<_> = held.filter(|index| !ranks[*index].has_moved()).collect();
    if !held.is_empty() {
        return judge_held(ranks, held);
    }
    if all().any(RankState::has_moved) {
        let text = "steps or collectives advance: slow, not stuck".to_owned();
        return HangVerdict::new(Answer::NotStuck, VerdictKind::Moves, part.to_vec(), text);
    }
    let gone = where_life(Life::Gone);
    if gone.len() == part.len() {
        return judge_gone(ranks, part);
    }
    if let Some(verdict) = device_fault(ranks, part).filter(|_| !gone.is_empty()) {
        return verdict;
    }
    if !gone.is_empty() {
        return judge_left(ranks, part, gone);
    }
    if let Some(verdict) = mismatch(ranks, part) {
        return verdict;
    }
    let quiet = all().filter_map(|rank| rank.quiet_ns).min();
    let is_quiet = quiet.is_some_and(|quiet| quiet >= LEAST_QUIET_NS);
    let mut verdict = behind(ranks, part).unwrap_or_else(|| together(ranks, part));
    let may_be_fault = matches!(
        verdict.kind,
        VerdictKind::Gpu | VerdictKind::NotEntered | VerdictKind::Unclear
    );
    if let Some(fault) = device_fault(ranks, part).filter(|_| may_be_fault && is_quiet) {
        return fault;
    }
    if verdict.answer == Answer::Stuck && verdict.kind != VerdictKind::Deadlock && !is_quiet {
        verdict.answer = Answer::CannotTell;
        verdict.text = ask_again(&verdict.text, quiet);
    }
    verdict
}

/// Returns the text of a verdict on ranks that have not been quiet for long enough. `quiet` is the time in nanoseconds
/// for which they have been quiet.
fn ask_again(text: &str, quiet: Option<u64>) -> String {
    let quiet = quiet.map_or("an unknown time".to_owned(), |quiet| {
        Time(quiet).to_string()
    });
    format!("{text} (quiet for {quiet}: ask again)")
}

/// Returns the verdict on the ranks `held`, which a debugger or tracer holds.
fn judge_held(ranks: &[RankState], held: Vec<usize>) -> HangVerdict {
    let are = is_or_are(&held);
    let mut tracers: Vec<_> = held.iter().map(|index| ranks[*index].tracer).collect();
    tracers.dedup();
    let by = match tracers[..] {
        [Some(tracer)] => format!(" (process {tracer})"),
        _ => String::new(),
    };
    let text = format!(
        "{} {are} held by a debugger or tracer{by}",
        names(ranks, &held)
    );
    HangVerdict::new(Answer::Stuck, VerdictKind::Stopped, held, text)
}

/// Returns the verdict on a group of ranks, of which the ranks `gone` have ended and the others have not. If some ranks
/// were killed, the verdict names only these, because other ranks may have ended as a result. The ranks that have not
/// ended must be quiet, and must not be at work, before the verdict says that they wait.
fn judge_left(ranks: &[RankState], part: &[usize], gone: Vec<usize>) -> HangVerdict {
    let left: Vec<_> = part
        .iter()
        .copied()
        .filter(|index| !gone.contains(index))
        .collect();
    let were_killed = gone.iter().any(|index| !ranks[*index].ring.has_ended);
    let named: Vec<_> = gone
        .into_iter()
        .filter(|index| !(were_killed && ranks[*index].ring.has_ended))
        .collect();
    let what = match (were_killed, named.len()) {
        (true, 1) => "was killed or has crashed",
        (true, _) => "were killed or have crashed",
        (false, 1) => "has ended by itself",
        (false, _) => "have ended by themselves",
    };
    // The latest call is named only if it is the same one in all of these ranks.
    let mut lasts: Vec<_> = named.iter().map(|index| last_of(&ranks[*index])).collect();
    lasts.dedup();
    let last = match &lasts[..] {
        [last] => last.as_str(),
        _ => "",
    };
    let text = format!("{} {what}{last}", names(ranks, &named));
    let quiet = left.iter().filter_map(|index| ranks[*index].quiet_ns).min();
    let mut at_work = left.iter().filter_map(|index| {
        let cause = StuckCause::find(&ranks[*index])?;
        (cause.kind == VerdictKind::Busy).then_some((*index, cause))
    });
    let at_work = at_work.next();
    if let Some((index, cause)) = &at_work
        && quiet.is_none_or(|quiet| quiet < longest_work(ranks, &left))
    {
        let text = format!("{text}; {}", cause_since(&ranks[*index], cause));
        return HangVerdict::new(Answer::NotStuck, VerdictKind::Busy, vec![*index], text);
    }
    // A thread that uses the processor for longer than any work takes may wait in a busy loop.
    let text = match at_work {
        Some(_) => format!("{text}; the others advance no more"),
        None => format!("{text}; the others wait"),
    };
    match quiet.is_some_and(|quiet| quiet >= LEAST_QUIET_NS) {
        true => HangVerdict::new(Answer::Stuck, VerdictKind::Dead, named, text),
        false => {
            let text = ask_again(&text, quiet);
            HangVerdict::new(Answer::CannotTell, VerdictKind::Dead, named, text)
        }
    }
}

/// Returns the time in nanoseconds for which a rank in `part` whose thread uses the processor counts as working while
/// no step or collective begins or ends.
fn longest_work(ranks: &[RankState], part: &[usize]) -> u64 {
    LONGEST_WORK_NS.max(LONGER_WORK_THAN_STEPS * longest_step(ranks, part).unwrap_or(0))
}

/// Returns the verdict on the first device fault that the kernel log has for one of the ranks `part`. Returns `None`
/// if it has no such fault.
fn device_fault(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    let faults = part
        .iter()
        .filter_map(|index| Some((*index, ranks[*index].fault.as_ref()?)));
    let (index, fault) = faults.min_by_key(|(_, fault)| fault.time_ns)?;
    let is_its = |index: &usize| ranks[*index].fault.as_ref() == Some(fault);
    let its: Vec<_> = part.iter().copied().filter(is_its).collect();
    let text = match fault.pid == Some(ranks[index].pid) {
        true => format!(
            "the kernel log names {} in {}",
            names(ranks, &[index]),
            fault.text()
        ),
        false => format!(
            "the kernel log has {} from when the ranks stopped",
            fault.text()
        ),
    };
    let text = format!("{text}{}", last_of(&ranks[index]));
    Some(HangVerdict::new(
        Answer::Stuck,
        VerdictKind::DeviceFault,
        its,
        text,
    ))
}

/// Returns the verdict on a group of ranks whose processes have all ended.
fn judge_gone(ranks: &[RankState], part: &[usize]) -> HangVerdict {
    if part.iter().all(|index| ranks[*index].ring.has_ended) {
        let text = "all processes have ended by themselves".to_owned();
        return HangVerdict::new(Answer::NotStuck, VerdictKind::Ended, part.to_vec(), text);
    }
    let at_end = device_fault(ranks, part)
        .or_else(|| mismatch(ranks, part))
        .or_else(|| behind(ranks, part));
    let (kind, its, text) = match at_end {
        Some(verdict) => (verdict.kind, verdict.ranks, verdict.text),
        None => (
            VerdictKind::Dead,
            part.to_vec(),
            "all ranks had entered the same collectives".to_owned(),
        ),
    };
    let text = format!("all processes are gone; at their end {text}");
    HangVerdict::new(Answer::CannotTell, kind, its, text)
}

/// Returns the verdict on ranks that have all entered the same collectives, so that no rank is late.
fn together(ranks: &[RankState], part: &[usize]) -> HangVerdict {
    let causes: Vec<_> = part
        .iter()
        .filter_map(|index| Some((*index, StuckCause::find(&ranks[*index])?)))
        .collect();
    let of_kind = |kind| causes.iter().find(move |(_, cause)| cause.kind == kind);
    let about = |index: usize, cause: &StuckCause| cause_since(&ranks[index], cause);
    for kind in [
        VerdictKind::Deadlock,
        VerdictKind::Lock,
        VerdictKind::Gil,
        VerdictKind::Queue,
    ] {
        if let Some((index, cause)) = of_kind(kind) {
            return HangVerdict::new(Answer::Stuck, kind, vec![*index], about(*index, cause));
        }
    }
    if of_kind(VerdictKind::Gpu).is_some() {
        return waiting_for_gpu(ranks, part, &causes);
    }
    let same = match part.len() {
        1 => String::new(),
        count => format!("{count} ranks have entered the same collectives; "),
    };
    if let Some((index, cause)) = of_kind(VerdictKind::Busy) {
        let text = format!("{same}{}", about(*index, cause));
        let quiet = ranks[*index].quiet_ns.unwrap_or(0);
        let (answer, text) = match quiet < longest_work(ranks, part) {
            true => (Answer::NotStuck, text),
            false => (
                Answer::CannotTell,
                format!("{text}; a wait for the GPU that does not sleep looks the same"),
            ),
        };
        return HangVerdict::new(answer, VerdictKind::Busy, vec![*index], text);
    }
    match of_kind(VerdictKind::Idle).or(causes.first()) {
        Some((index, cause)) => {
            let text = format!("{same}{}", about(*index, cause));
            let answer = match cause.kind {
                VerdictKind::Idle => Answer::NotStuck,
                _ => Answer::CannotTell,
            };
            HangVerdict::new(answer, cause.kind, part.to_vec(), text)
        }
        None => {
            let text = format!("{same}the threads of {} cannot be read", names(ranks, part));
            HangVerdict::new(
                Answer::CannotTell,
                VerdictKind::Unclear,
                part.to_vec(),
                text,
            )
        }
    }
}

/// Returns a text with the reason why a rank does not make progress, and with the time for which it has been quiet.
fn cause_since(rank: &RankState, cause: &StuckCause) -> String {
    let quiet = rank.quiet_ns.map(Time);
    let since = quiet.map_or(String::new(), |quiet| format!(" since {quiet}"));
    format!("{}: {}{since}", rank.name(), cause.text)
}

/// Returns the verdict on ranks that have all entered the same collectives, and some of which wait for the GPU.
fn waiting_for_gpu(
    ranks: &[RankState],
    part: &[usize],
    causes: &[(usize, StuckCause)],
) -> HangVerdict {
    let of_kind = |kind| causes.iter().filter(move |(_, cause)| cause.kind == kind);
    let waiting = of_kind(VerdictKind::Gpu).map(|(index, _)| *index);
    let waiting = waiting.collect::<Vec<_>>();
    let others = part.iter().copied().filter(|one| !waiting.contains(one));
    let others = others.collect::<Vec<_>>();
    // A rank that is in a host function of a stream delays the GPUs of all ranks. So the verdict names this function,
    // also if the rank's main thread does not wait for the GPU.
    let in_host_function = causes.iter().find(|(_, cause)| cause.is_host_function);
    let is_unexplained = in_host_function.is_none();
    let mut odd =
        of_kind(VerdictKind::Idle).filter(|_| is_unexplained && others.len() < waiting.len());
    if let Some((index, cause)) = odd.next() {
        let text = format!(
            "{}, while the others wait for the GPU",
            cause_since(&ranks[*index], cause)
        );
        return HangVerdict::new(Answer::Stuck, VerdictKind::NotEntered, others, text);
    }
    if is_unexplained
        && others.is_empty()
        && let Some(verdict) = captured_mismatch(ranks, part)
    {
        return verdict;
    }
    let first = in_host_function.or(of_kind(VerdictKind::Gpu).next());
    let text = first.map_or_else(String::new, |(index, cause)| {
        cause_since(&ranks[*index], cause)
    });
    let longest = longest_step(ranks, part).unwrap_or(0);
    let quiet = first.and_then(|(index, _)| ranks[*index].quiet_ns);
    let usual = LONGEST_PREFILL_NS.max(LONGER_THAN_STEPS * longest);
    let (answer, text) = match quiet.unwrap_or(0) >= usual {
        true => (Answer::Stuck, text),
        false => (
            Answer::NotStuck,
            format!("{text}; earlier steps took up to {}", Time(longest)),
        ),
    };
    let mut named = waiting;
    named.extend(first.map(|(index, _)| *index));
    named.sort_unstable();
    named.dedup();
    HangVerdict::new(answer, VerdictKind::Gpu, named, text)
}

/// Returns the duration of the longest step, in nanoseconds, among the latest steps of the ranks in `part`.
fn longest_step(ranks: &[RankState], part: &[usize]) -> Option<u64> {
    let steps = part.iter().filter_map(|index| ranks[*index].longest_step());
    steps.max()
}
