//! Judges from the states of all ranks whether they are stuck, and why.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tllmprof_record::{Called, Operation};
use tllmprof_report::{Bytes, Time};

use super::state::{Life, ProcessThread, RankState};

/// Ranks are called stuck only after they have been quiet for at least this time: no step or collective began or ended.
const LEAST_QUIET_NS: u64 = 3_000_000_000;
/// A wait for the GPU is called stuck only if it takes at least this many times as long as the longest of the latest
/// steps.
const LONGER_THAN_STEPS: u64 = 2;
/// If a thread uses the processor for longer than both limits, it is not clear whether it works or waits in a busy
/// loop. The first limit is a time in nanoseconds. The second is a multiple of the longest of the latest steps.
const LONGEST_WORK_NS: u64 = 60_000_000_000;
const LONGER_WORK_THAN_STEPS: u64 = 10;

/// The kind of a verdict: the state of the ranks, or the reason why they are stuck.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum VerdictKind {
    /// Steps or collectives began or ended between the two readings.
    Moves,
    /// All processes have ended regularly.
    Ended,
    /// The ranks have entered the same collectives, and wait for work, such as requests.
    Idle,
    /// A rank for which the others wait is using the processor.
    Busy,
    /// The ranks were quiet for too short a time, or too little is known about them.
    Unclear,
    /// Ranks called different collectives where they should have called the same one.
    Mismatch,
    /// Ranks called the same collectives in a different order.
    Order,
    Dead,
    Stopped,
    /// A rank did not enter a collective that other ranks have entered.
    NotEntered,
    /// Threads of a process wait for each other's locks.
    Deadlock,
    Lock,
    Gil,
    /// The GPU does not finish its work.
    Gpu,
}

/// The answer to the question whether the ranks are stuck.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Stuck,
    NotStuck,
    CannotTell,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HangVerdict {
    pub answer: Answer,
    pub kind: VerdictKind,
    /// The ranks that the verdict is about, as indices into the list of all ranks.
    pub ranks: Vec<usize>,
    pub text: String,
}

impl HangVerdict {
    fn new(answer: Answer, kind: VerdictKind, ranks: Vec<usize>, text: String) -> Self {
        Self {
            answer,
            kind,
            ranks,
            text,
        }
    }
}

/// Judges all ranks. Groups of ranks that share no communicator are judged separately, and the worst verdict is
/// returned.
pub(crate) fn judge(ranks: &[RankState]) -> HangVerdict {
    let parts = parts(ranks);
    let mut verdicts: Vec<_> = parts.iter().map(|part| judge_part(ranks, part)).collect();
    // A verdict on processes that have ended is dropped if any other process moves or is itself stuck.
    let is_gone = |verdict: &HangVerdict| {
        let mut its = verdict.ranks.iter();
        its.all(|rank| ranks[*rank].life == Life::Gone)
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

/// Groups the ranks: two ranks are in the same group if they share a communicator, directly or through other ranks.
fn parts(ranks: &[RankState]) -> Vec<Vec<usize>> {
    let mut parts: Vec<(BTreeSet<u64>, Vec<usize>)> = Vec::new();
    for (index, rank) in ranks.iter().enumerate() {
        let ids = rank.ring.communicators.iter().map(|one| one.id);
        let called = rank.ring.collectives.iter().map(|call| call.communicator);
        let mut ids: BTreeSet<_> = ids.chain(called).filter(|id| *id != 0).collect();
        let mut its = vec![index];
        parts.retain(|(others, members)| {
            let is_other = others.is_disjoint(&ids);
            if !is_other {
                ids.extend(others);
                its.extend(members);
            }
            is_other
        });
        its.sort_unstable();
        parts.push((ids, its));
    }
    parts.into_iter().map(|(_, its)| its).collect()
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
        let s = if stopped.len() == 1 { "is" } else { "are" };
        let text = format!(
            "{} {s} stopped by a signal or a debugger: kill -CONT {} lets it go on",
            names(ranks, &stopped),
            ranks[first].pid
        );
        return HangVerdict::new(Answer::Stuck, VerdictKind::Stopped, stopped, text);
    }
    if all().any(RankState::has_moved) {
        let text = "steps or collectives advance: slow, not stuck".to_owned();
        return HangVerdict::new(Answer::NotStuck, VerdictKind::Moves, part.to_vec(), text);
    }
    let gone = where_life(Life::Gone);
    if gone.len() == part.len() {
        return judge_gone(ranks, part);
    }
    if let [first, ..] = gone[..] {
        let ended = gone.iter().all(|index| ranks[*index].ring.has_ended);
        let what = match ended {
            true => "has ended by itself",
            false => "was killed or has crashed",
        };
        let text = format!(
            "{} {what}{}; the others wait",
            names(ranks, &gone),
            last_of(&ranks[first])
        );
        return HangVerdict::new(Answer::Stuck, VerdictKind::Dead, gone, text);
    }
    if let Some(verdict) = mismatch(ranks, part) {
        return verdict;
    }
    let quiet = all().filter_map(|rank| rank.quiet_ns).min();
    let is_quiet = quiet.is_some_and(|quiet| quiet >= LEAST_QUIET_NS);
    let mut verdict = behind(ranks, part).unwrap_or_else(|| together(ranks, part));
    if verdict.answer == Answer::Stuck && verdict.kind != VerdictKind::Deadlock && !is_quiet {
        verdict.answer = Answer::CannotTell;
        verdict.text = format!(
            "{} (quiet for {}: ask again)",
            verdict.text,
            quiet.map_or("an unknown time".to_owned(), |quiet| Time(quiet)
                .to_string())
        );
    }
    verdict
}

/// Judges a group whose processes have all ended.
fn judge_gone(ranks: &[RankState], part: &[usize]) -> HangVerdict {
    if part.iter().all(|index| ranks[*index].ring.has_ended) {
        let text = "all processes have ended by themselves".to_owned();
        return HangVerdict::new(Answer::NotStuck, VerdictKind::Ended, part.to_vec(), text);
    }
    let at_end = mismatch(ranks, part).or_else(|| behind(ranks, part));
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

/// Returns the names of some ranks as text, such as `rank 3 and rank 5`.
fn names(ranks: &[RankState], which: &[usize]) -> String {
    const SHOWN: usize = 4;
    let mut names: Vec<_> = which.iter().map(|index| ranks[*index].name()).collect();
    if names.len() > SHOWN {
        let more = names.len() - SHOWN;
        names.truncate(SHOWN);
        names.push(format!("{more} more"));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

fn last_of(rank: &RankState) -> String {
    match rank.ring.collectives.last() {
        Some(call) => format!(" after {}", collective(rank, call)),
        None => String::new(),
    }
}

/// Returns a name for a communicator of this rank, for messages.
pub(crate) fn communicator(rank: &RankState, id: u64) -> String {
    let mut all = rank.ring.communicators.iter();
    let place = all.find(|one| one.id == id).and_then(|one| one.place);
    let Some((number, size)) = place else {
        return "an unknown communicator".to_owned();
    };
    let mut groups = rank.ring.groups.iter();
    let group = groups.find(|group| (group.rank, group.size) == (number, size));
    match group {
        Some(group) => group.name.clone(),
        None => format!("the communicator of {size} ranks"),
    }
}

fn arguments(operation: &Operation) -> String {
    match operation.bytes() {
        Some(bytes) => format!("{}, {}", Bytes(bytes), operation.type_name()),
        None => format!("{} elements", operation.count),
    }
}

/// Returns a description of a collective, with its number, communicator and arguments.
pub(crate) fn collective(rank: &RankState, call: &Called) -> String {
    format!(
        "{} #{} of {} ({})",
        call.operation.collective,
        call.sequence,
        communicator(rank, call.communicator),
        arguments(&call.operation)
    )
}

/// Returns the collectives of a communicator that the rank's ring still contains, by number. Collectives that only some
/// ranks of the communicator take part in are left out.
fn calls_of(rank: &RankState, id: u64) -> BTreeMap<u64, &Called> {
    let calls = rank.ring.collectives.iter();
    calls
        .filter(|call| call.communicator == id && call.operation.collective.is_of_all_ranks())
        .map(|call| (call.sequence, call))
        .collect()
}

/// Returns the communicators that at least two of the ranks use, with the ranks that use each.
fn shared(ranks: &[RankState], part: &[usize]) -> BTreeMap<u64, Vec<usize>> {
    let mut users: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for index in part {
        for one in &ranks[*index].ring.communicators {
            users.entry(one.id).or_default().push(*index);
        }
    }
    users.retain(|id, users| *id != 0 && users.len() > 1);
    users
}

/// Finds the first collective at which ranks called different operations. The collectives of a communicator are
/// numbered, and calls with the same number have to match.
fn mismatch(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    let shared = shared(ranks, part);
    let mut shared = shared.iter();
    shared.find_map(|(id, users)| mismatch_in(ranks, *id, users))
}

fn mismatch_in(ranks: &[RankState], id: u64, users: &[usize]) -> Option<HangVerdict> {
    let calls: Vec<_> = users
        .iter()
        .map(|index| calls_of(&ranks[*index], id))
        .collect();
    let numbers: BTreeSet<u64> = calls
        .iter()
        .flat_map(|calls| calls.keys().copied())
        .collect();
    for number in numbers {
        let mut by_operation: Vec<(Operation, Vec<usize>)> = Vec::new();
        for (index, calls) in users.iter().zip(&calls) {
            let Some(call) = calls.get(&number) else {
                continue;
            };
            match by_operation
                .iter_mut()
                .find(|(it, _)| *it == call.operation)
            {
                Some((_, its)) => its.push(*index),
                None => by_operation.push((call.operation, vec![*index])),
            }
        }
        if by_operation.len() < 2 {
            continue;
        }
        by_operation.sort_by_key(|(_, its)| its.len());
        let (odd, its) = &by_operation[0];
        let (usual, others) = &by_operation[by_operation.len() - 1];
        // The order is swapped if one rank's next collective is the operation that the other rank called first.
        let next = |index: usize| {
            let place = users.iter().position(|user| *user == index)?;
            calls[place].get(&(number + 1)).map(|call| call.operation)
        };
        let is_swapped = next(its[0]) == Some(*usual) || next(others[0]) == Some(*odd);
        let name = communicator(&ranks[its[0]], id);
        let what =
            |operation: &Operation| format!("{} ({})", operation.collective, arguments(operation));
        let text = format!(
            "{} called {} as #{number} of {name}, where {} called {}{}",
            names(ranks, its),
            what(odd),
            names(ranks, others),
            what(usual),
            if is_swapped { ": another order" } else { "" }
        );
        let kind = if is_swapped {
            VerdictKind::Order
        } else {
            VerdictKind::Mismatch
        };
        return Some(HangVerdict::new(Answer::Stuck, kind, its.clone(), text));
    }
    None
}

/// Finds ranks whose CUDA graphs contain other collectives than those of the other ranks. Lists that may be incomplete
/// are not compared. Call this only if all ranks wait for the GPU, because the lists differ while ranks are still
/// capturing.
fn captured_mismatch(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    const WHOLE: usize = 256;
    for (id, users) in &shared(ranks, part) {
        let list = |index: &usize| {
            let all = &ranks[*index].ring.captured;
            let its = all.iter().filter(|one| one.communicator == *id);
            let its: Vec<_> = its.map(|one| (one.operation, one.times)).collect();
            (all.len() < WHOLE).then_some(its)
        };
        let lists: Option<Vec<_>> = users.iter().map(list).collect();
        let Some(lists) = lists else { continue };
        let usual = lists
            .iter()
            .max_by_key(|list| lists.iter().filter(|other| other == list).count())?;
        let odd: Vec<_> = users
            .iter()
            .zip(&lists)
            .filter(|(_, list)| *list != usual)
            .map(|(index, _)| *index)
            .collect();
        if !odd.is_empty() {
            let text = format!(
                "the CUDA graphs of {} hold other collectives of {} than those of the others",
                names(ranks, &odd),
                communicator(&ranks[odd[0]], *id)
            );
            return Some(HangVerdict::new(
                Answer::Stuck,
                VerdictKind::Mismatch,
                odd,
                text,
            ));
        }
    }
    None
}

/// Finds the rank that did not enter a collective that others have entered. If this rank itself waits in another
/// collective for another rank, the search continues with that rank.
fn behind(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    let shared = shared(ranks, part);
    // The collectives that some ranks have entered and others have not, each with the ranks that have not entered it.
    let mut missing = Vec::new();
    for (id, users) in &shared {
        let sequences = users.iter().filter_map(|index| ranks[*index].sequence(*id));
        let (Some(least), Some(most)) = (sequences.clone().min(), sequences.max()) else {
            continue;
        };
        if least < most {
            let late = users.iter().copied();
            let late = late.filter(|index| ranks[*index].sequence(*id) == Some(least));
            missing.push((*id, least, late.collect::<Vec<_>>()));
        }
    }
    // A rank that is ahead of others in some communicator waits there for them. The cause is a late rank that waits
    // nowhere.
    let waits = |index: usize| {
        missing.iter().any(|(id, least, _)| {
            ranks[index]
                .sequence(*id)
                .is_some_and(|sequence| sequence > *least)
        })
    };
    let first = missing
        .iter()
        .find(|(.., late)| late.iter().any(|index| !waits(*index)));
    let Some((id, number, late)) = first else {
        let (id, number, late) = missing.first()?;
        let text = format!(
            "ranks wait for each other in different communicators: {} did not enter #{number} of {}",
            names(ranks, late),
            communicator(&ranks[late[0]], *id)
        );
        return Some(HangVerdict::new(
            Answer::Stuck,
            VerdictKind::Order,
            late.clone(),
            text,
        ));
    };
    let late: Vec<_> = late
        .iter()
        .copied()
        .filter(|index| !waits(*index))
        .collect();
    let users = &shared[id];
    let call = users
        .iter()
        .find_map(|index| calls_of(&ranks[*index], *id).get(number).copied());
    let rank = &ranks[late[0]];
    let what = match call {
        Some(call) => format!(
            "{} #{number} of {} ({})",
            call.operation.collective,
            communicator(rank, *id),
            arguments(&call.operation)
        ),
        None => format!("collective #{number} of {}", communicator(rank, *id)),
    };
    let since = rank
        .quiet_ns
        .map_or(String::new(), |quiet| format!(" since {}", Time(quiet)));
    let cause = StuckCause::find(rank);
    let (answer, kind) = match &cause {
        Some(cause) if cause.kind == VerdictKind::Busy => (Answer::NotStuck, VerdictKind::Busy),
        Some(cause)
            if matches!(
                cause.kind,
                VerdictKind::Deadlock | VerdictKind::Lock | VerdictKind::Gil
            ) =>
        {
            (Answer::Stuck, cause.kind)
        }
        _ => (Answer::Stuck, VerdictKind::NotEntered),
    };
    let why = match cause {
        Some(cause) => format!(": {}{since}", cause.text),
        None => String::new(),
    };
    let text = format!("{} did not enter {what}{why}", names(ranks, &late));
    Some(HangVerdict::new(answer, kind, late, text))
}

/// Judges ranks that have all entered the same collectives.
fn together(ranks: &[RankState], part: &[usize]) -> HangVerdict {
    let causes: Vec<_> = part
        .iter()
        .filter_map(|index| Some((*index, StuckCause::find(&ranks[*index])?)))
        .collect();
    let of_kind = |kind| causes.iter().find(move |(_, cause)| cause.kind == kind);
    let about = |index: usize, cause: &StuckCause| {
        let quiet = ranks[index].quiet_ns.map(Time);
        let since = quiet.map_or(String::new(), |quiet| format!(" since {quiet}"));
        format!("{}: {}{since}", ranks[index].name(), cause.text)
    };
    for kind in [VerdictKind::Deadlock, VerdictKind::Lock, VerdictKind::Gil] {
        if let Some((index, cause)) = of_kind(kind) {
            return HangVerdict::new(Answer::Stuck, kind, vec![*index], about(*index, cause));
        }
    }
    let waiting = causes
        .iter()
        .filter(|(_, cause)| cause.kind == VerdictKind::Gpu);
    let waiting = waiting.map(|(index, _)| *index).collect::<Vec<_>>();
    if let Some((index, cause)) = of_kind(VerdictKind::Gpu) {
        let others: Vec<_> = part
            .iter()
            .copied()
            .filter(|one| !waiting.contains(one))
            .collect();
        let odd = of_kind(VerdictKind::Idle).filter(|_| others.len() < waiting.len());
        if let Some((index, cause)) = odd {
            let text = format!(
                "{}, while the others wait for the GPU",
                about(*index, cause)
            );
            return HangVerdict::new(Answer::Stuck, VerdictKind::NotEntered, others, text);
        }
        if let Some(verdict) = captured_mismatch(ranks, part).filter(|_| others.is_empty()) {
            return verdict;
        }
        let longest = longest_step(ranks, part);
        let quiet = ranks[*index].quiet_ns.unwrap_or(0);
        let is_longer = quiet >= LONGER_THAN_STEPS * longest.unwrap_or(0);
        let text = match is_longer {
            true => about(*index, cause),
            false => format!(
                "{}; earlier steps took up to {}",
                about(*index, cause),
                Time(longest.unwrap_or(0))
            ),
        };
        let answer = if is_longer {
            Answer::Stuck
        } else {
            Answer::NotStuck
        };
        return HangVerdict::new(answer, VerdictKind::Gpu, waiting, text);
    }
    let same = match part.len() {
        1 => String::new(),
        count => format!("{count} ranks have entered the same collectives; "),
    };
    if let Some((index, cause)) = of_kind(VerdictKind::Busy) {
        let text = format!("{same}{}", about(*index, cause));
        let quiet = ranks[*index].quiet_ns.unwrap_or(0);
        let usual =
            LONGEST_WORK_NS.max(LONGER_WORK_THAN_STEPS * longest_step(ranks, part).unwrap_or(0));
        let (answer, text) = match quiet < usual {
            true => (Answer::NotStuck, text),
            false => (
                Answer::CannotTell,
                format!("{text}; a wait for the GPU that does not sleep looks the same"),
            ),
        };
        return HangVerdict::new(answer, VerdictKind::Busy, vec![*index], text);
    }
    match causes.first() {
        Some((index, cause)) => {
            let text = format!("{same}{}", about(*index, cause));
            HangVerdict::new(Answer::NotStuck, VerdictKind::Idle, part.to_vec(), text)
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

/// Returns the duration of the longest of the latest steps of some ranks, in nanoseconds.
fn longest_step(ranks: &[RankState], part: &[usize]) -> Option<u64> {
    let steps = part.iter().filter_map(|index| ranks[*index].longest_step());
    steps.max()
}

/// The reason why a rank does not make progress.
pub(super) struct StuckCause {
    pub kind: VerdictKind,
    pub text: String,
}

impl StuckCause {
    /// Finds why the thread that makes the steps does not continue. It follows locks and the GIL from thread to thread.
    /// `None` if nothing is known about that thread.
    pub(crate) fn find(rank: &RankState) -> Option<Self> {
        let first = rank.main_thread()?;
        let mut chain = vec![first];
        let mut is_by_gil = false;
        loop {
            let last = chain[chain.len() - 1];
            let holder = rank.gil_holder.filter(|_| last.waits_for_gil);
            if chain.len() == 1 {
                is_by_gil = last.mutex_owner.is_none() && holder.is_some();
            }
            let Some(next) = last.mutex_owner.or(holder).and_then(|id| rank.thread(id)) else {
                break;
            };
            if next.id == last.id && last.mutex_owner.is_none() {
                break;
            }
            if let Some(start) = chain.iter().position(|thread| thread.id == next.id) {
                return Some(Self::deadlock(&chain[start..]));
            }
            chain.push(next);
        }
        let last = chain[chain.len() - 1];
        if chain.len() == 1 {
            return Some(Self::of_thread(last));
        }
        let what = if is_by_gil { "the GIL" } else { "a lock" };
        let holder = Self::of_thread(last);
        let kind = match (holder.kind, is_by_gil) {
            (VerdictKind::Busy, _) => VerdictKind::Busy,
            (_, true) => VerdictKind::Gil,
            (_, false) => VerdictKind::Lock,
        };
        let text = format!(
            "{} waits for {what}{}, which {} holds: it {}",
            named(first),
            in_function(first),
            named(last),
            holder.text
        );
        Some(Self { kind, text })
    }

    fn deadlock(threads: &[&ProcessThread]) -> Self {
        let each = threads.iter().map(|thread| {
            let what = if thread.mutex_owner.is_some() {
                "a lock"
            } else {
                "the GIL"
            };
            format!("{} waits for {what}{}", named(thread), in_function(thread))
        });
        let text = match threads {
            [only] => format!(
                "{} waits for a lock that it holds itself{}",
                named(only),
                in_function(only)
            ),
            _ => format!(
                "threads wait for each other: {}",
                each.collect::<Vec<_>>().join(", ")
            ),
        };
        Self {
            kind: VerdictKind::Deadlock,
            text,
        }
    }

    fn of_thread(thread: &ProcessThread) -> Self {
        let function = in_function(thread);
        let (kind, text) = if let Some(wait) = thread.gpu_wait() {
            (
                VerdictKind::Gpu,
                format!("waits for the GPU in {wait}{function}"),
            )
        } else if thread.state == 'R' || thread.ran && thread.call.is_none() {
            (VerdictKind::Busy, format!("runs{function}"))
        } else {
            let call = thread.call.as_deref().unwrap_or("an unknown system call");
            (VerdictKind::Idle, format!("sleeps in {call}{function}"))
        };
        Self { kind, text }
    }
}

fn named(thread: &ProcessThread) -> String {
    format!("thread {} ({})", thread.id, thread.name)
}

fn in_function(thread: &ProcessThread) -> String {
    thread
        .function()
        .map_or(String::new(), |name| format!(", in {name}"))
}

#[cfg(test)]
mod tests {
    use tllmprof_record::{
        CapturedCollective, CapturedGroup, Collective, Ring, RingCommunicator, RingStep,
    };

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const COMMUNICATOR: u64 = 7;
    const RANKS: usize = 8;

    fn operation(collective: Collective, count: u64) -> Operation {
        Operation {
            collective,
            count,
            data_type: 9,
            peer: None,
        }
    }

    fn all_reduce() -> Operation {
        operation(Collective::AllReduce, 1 << 21)
    }

    fn call(communicator: u64, sequence: u64, operation: Operation) -> Called {
        Called {
            communicator,
            sequence,
            operation,
            stream: 1,
            thread: 100,
            begin_ns: sequence,
            end_ns: Some(sequence + 1),
        }
    }

    /// Returns a thread that waits for the GPU.
    fn waiting(id: u32) -> ProcessThread {
        let names = [
            ("clock_nanosleep", "libc.so.6"),
            ("cuStreamSynchronize", "libcuda.so.1"),
            ("main", "server"),
        ];
        ProcessThread {
            id,
            name: format!("t{id}"),
            state: 'S',
            call: Some("clock_nanosleep".to_owned()),
            native: names
                .map(|(name, module)| (name.to_owned(), module.to_owned()))
                .to_vec(),
            ..ProcessThread::default()
        }
    }

    fn asleep(id: u32, function: &str) -> ProcessThread {
        ProcessThread {
            call: Some("futex".to_owned()),
            native: vec![(function.to_owned(), "server".to_owned())],
            ..waiting(id)
        }
    }

    /// Returns a rank that has entered 10 all-reduces, the last of which is #9, and waits for the GPU.
    fn rank(number: u32) -> RankState {
        let pid = 100 * (number + 1);
        let ring = Ring {
            pid,
            rank: Some(number.into()),
            steps_begun: 5,
            step_thread: pid,
            collectives_begun: 10,
            groups: vec![CapturedGroup {
                name: "TP".to_owned(),
                rank: number,
                size: RANKS as u32,
            }],
            communicators: vec![RingCommunicator {
                id: COMMUNICATOR,
                place: Some((number, RANKS as u32)),
                sequence: 10,
            }],
            steps: vec![RingStep {
                number: 3,
                begin_ns: 0,
                end_ns: Some(SECOND),
            }],
            collectives: (0..10)
                .map(|n| call(COMMUNICATOR, n, all_reduce()))
                .collect(),
            ..Ring::default()
        };
        RankState {
            pid,
            life: Life::Runs,
            before: ring.clone(),
            ring,
            quiet_ns: Some(41 * SECOND),
            threads: vec![waiting(pid), asleep(pid + 1, "helper")],
            gil_holder: None,
        }
    }

    fn ranks() -> Vec<RankState> {
        (0..RANKS as u32).map(rank).collect()
    }

    /// Changes a rank's ring in the same way at both readings, so that the rank does not seem to move.
    fn change(rank: &mut RankState, act: impl Fn(&mut Ring)) {
        act(&mut rank.ring);
        act(&mut rank.before);
    }

    /// Returns ranks of which rank 3 has not entered the last `count` collectives.
    fn without_last(count: usize) -> Vec<RankState> {
        let mut ranks = ranks();
        change(&mut ranks[3], |ring| {
            ring.collectives.truncate(10 - count);
            ring.communicators[0].sequence -= count as u64;
        });
        ranks
    }

    fn judged(ranks: &[RankState]) -> (Answer, VerdictKind, Vec<usize>, String) {
        let verdict = judge(ranks);
        (verdict.answer, verdict.kind, verdict.ranks, verdict.text)
    }

    #[test]
    fn a_rank_that_sleeps_before_a_collective_is_named_with_its_function() {
        let mut ranks = without_last(2);
        ranks[3].threads[0] = asleep(400, "hold_up");
        let text = "rank 3 did not enter all_reduce #8 of TP (4.00 MiB, bfloat16): sleeps in futex, in hold_up (server) since \
                    41.0 s";
        let expected = (
            Answer::Stuck,
            VerdictKind::NotEntered,
            vec![3],
            text.to_owned(),
        );
        assert_eq!(judged(&ranks), expected);
        // If the Python function is known, the text names it, because that is code which the user wrote.
        ranks[3].threads[0].python = vec!["f (a.py:3)".to_owned()];
        assert!(judged(&ranks).3.contains("in f (a.py:3) since"));
        // Ranks that have been quiet for only a second are not called stuck.
        ranks
            .iter_mut()
            .for_each(|rank| rank.quiet_ns = Some(SECOND));
        assert_eq!(judged(&ranks).0, Answer::CannotTell);
    }

    #[test]
    fn a_rank_that_works_is_late_and_not_stuck() {
        let mut ranks = without_last(1);
        ranks[3].threads[0] = ProcessThread {
            state: 'R',
            ran: true,
            call: None,
            ..asleep(400, "compile")
        };
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::NotStuck, VerdictKind::Busy, vec![3])
        );
        assert!(
            text.contains("rank 3 did not enter all_reduce #9") && text.contains("runs"),
            "{text}"
        );
    }

    #[test]
    fn other_arguments_are_a_mismatch_and_swapped_calls_another_order() {
        let mut ranks = ranks();
        let smaller = operation(Collective::AllReduce, 1 << 20);
        change(&mut ranks[5], |ring| {
            ring.collectives[9].operation = smaller
        });
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Mismatch, vec![5])
        );
        let expected = "rank 5 called all_reduce (2.00 MiB, bfloat16) as #9 of TP, where rank 0, rank 1, rank 2, rank 3 and 3 \
                        more called all_reduce (4.00 MiB, bfloat16)";
        assert_eq!(text, expected);
        let broadcast = operation(Collective::Broadcast, 5);
        for (index, rank) in ranks.iter_mut().enumerate() {
            let (first, second) = match index {
                5 => (broadcast, all_reduce()),
                _ => (all_reduce(), broadcast),
            };
            change(rank, |ring| {
                ring.collectives[8].operation = first;
                ring.collectives[9].operation = second;
            });
        }
        let (_, kind, its, text) = judged(&ranks);
        assert_eq!((kind, its), (VerdictKind::Order, vec![5]));
        assert!(text.ends_with("another order"), "{text}");
    }

    #[test]
    fn a_rank_that_is_gone_or_stopped_is_named_at_once() {
        let mut ranks = without_last(1);
        ranks[3].life = Life::Gone;
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Dead, vec![3])
        );
        assert!(
            text.contains("was killed or has crashed after all_reduce #8 of TP"),
            "{text}"
        );
        ranks[3].life = Life::Stopped;
        // Other ranks may still begin steps, as long as these need no rank that is stopped.
        ranks[0].ring.steps_begun += 1;
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Stopped, vec![3])
        );
        assert!(text.contains("kill -CONT 400"), "{text}");
    }

    #[test]
    fn a_lock_is_followed_to_the_thread_that_holds_it() {
        let mut ranks = without_last(1);
        ranks[3].threads[0] = ProcessThread {
            mutex_owner: Some(401),
            ..asleep(400, "take")
        };
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Lock, vec![3])
        );
        let expected = "thread 400 (t400) waits for a lock, in take (server), which thread 401 (t401) holds: it sleeps in \
                        futex, in helper (server)";
        assert!(text.contains(expected), "{text}");
        ranks[3].threads[1].mutex_owner = Some(400);
        let (_, kind, _, text) = judged(&ranks);
        assert_eq!(kind, VerdictKind::Deadlock);
        assert!(
            text.contains("threads wait for each other: thread 400"),
            "{text}"
        );
    }

    #[test]
    fn the_gil_is_followed_to_the_thread_that_holds_it() {
        let mut ranks = without_last(1);
        let rank = &mut ranks[3];
        rank.threads[0] = ProcessThread {
            waits_for_gil: true,
            ..asleep(400, "take_gil")
        };
        rank.threads[1].python = vec!["holder (a.py:9)".to_owned()];
        rank.gil_holder = Some(401);
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Gil, vec![3])
        );
        assert!(text.contains("waits for the GIL"), "{text}");
        assert!(
            text.contains("thread 401 (t401) holds: it sleeps in futex, in holder (a.py:9)"),
            "{text}"
        );
        // The holder of the lock now waits for a lock that the first thread owns.
        ranks[3].threads[1].mutex_owner = Some(400);
        assert_eq!(judged(&ranks).1, VerdictKind::Deadlock);
    }

    #[test]
    fn a_wait_for_the_gpu_is_stuck_if_it_is_longer_than_steps_are() {
        let ranks = ranks();
        let (answer, kind, _, text) = judged(&ranks);
        assert_eq!((answer, kind), (Answer::Stuck, VerdictKind::Gpu));
        assert!(
            text.contains("waits for the GPU in cuStreamSynchronize"),
            "{text}"
        );
        let mut slow = ranks;
        change(&mut slow[0], |ring| {
            ring.steps[0].end_ns = Some(30 * SECOND)
        });
        assert_eq!(judged(&slow).0, Answer::NotStuck);
    }

    #[test]
    fn a_rank_that_sleeps_while_all_others_wait_for_the_gpu_is_named() {
        // Collectives in CUDA graphs have no numbers, so only the thread's function shows that this rank is not in one.
        let mut ranks = ranks();
        ranks[6].threads[0] = asleep(700, "hold_up");
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::NotEntered, vec![6])
        );
        assert!(text.contains("while the others wait for the GPU"), "{text}");
    }

    #[test]
    fn ranks_whose_graphs_hold_other_collectives_are_named() {
        let mut ranks = ranks();
        for (index, rank) in ranks.iter_mut().enumerate() {
            let times = if index == 2 { 159 } else { 160 };
            change(rank, |ring| {
                ring.captured = vec![CapturedCollective {
                    communicator: COMMUNICATOR,
                    operation: all_reduce(),
                    times,
                }];
            });
        }
        let (answer, kind, its, _) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Mismatch, vec![2])
        );
    }

    #[test]
    fn a_rank_that_is_at_work_for_long_may_as_well_wait() {
        let mut ranks = ranks();
        for rank in &mut ranks {
            rank.threads[0] = ProcessThread {
                state: 'R',
                ran: true,
                call: None,
                native: Vec::new(),
                ..waiting(rank.pid)
            };
        }
        let (answer, kind, ..) = judged(&ranks);
        assert_eq!((answer, kind), (Answer::NotStuck, VerdictKind::Busy));
        ranks[0].quiet_ns = Some(61 * SECOND);
        assert_eq!(judged(&ranks).0, Answer::CannotTell);
        // With the Python function it is clear that the thread waits for the GPU.
        let python = "Event.synchronize (/lib/torch/cuda/streams.py:226)".to_owned();
        ranks
            .iter_mut()
            .for_each(|rank| rank.threads[0].python = vec![python.clone()]);
        assert_eq!(judged(&ranks).1, VerdictKind::Gpu);
    }

    #[test]
    fn ranks_that_move_or_wait_for_work_are_not_stuck() {
        let mut moving = without_last(2);
        moving[0].ring.collectives_begun += 1;
        assert_eq!(judged(&moving).1, VerdictKind::Moves);
        let mut ended = ranks();
        ended[7].ring.steps[0].end_ns = Some(2 * SECOND);
        assert_eq!(judged(&ended).1, VerdictKind::Moves);
        let mut idle = ranks();
        for rank in &mut idle {
            rank.threads[0] = asleep(rank.pid, "wait_for_work");
        }
        let (answer, kind, _, text) = judged(&idle);
        assert_eq!((answer, kind), (Answer::NotStuck, VerdictKind::Idle));
        assert!(
            text.starts_with("8 ranks have entered the same collectives; rank 0: sleeps in futex"),
            "{text}"
        );
    }

    #[test]
    fn a_chain_of_communicators_leads_to_the_rank_that_waits_in_none() {
        // Rank 0 waits in the first communicator for rank 1, which waits in the second for rank 2.
        let mut ranks: Vec<_> = (0..3).map(rank).collect();
        let use_of = |ring: &mut Ring, id, sequence| {
            ring.communicators.push(RingCommunicator {
                id,
                place: Some((0, 2)),
                sequence,
            });
        };
        for (index, communicators) in [&[(1, 5)][..], &[(1, 4), (2, 9)], &[(2, 8)]]
            .iter()
            .enumerate()
        {
            change(&mut ranks[index], |ring| {
                ring.communicators.clear();
                ring.collectives.clear();
                for (id, sequence) in *communicators {
                    use_of(ring, *id, *sequence);
                }
            });
        }
        ranks[2].threads[0] = asleep(300, "hold_up");
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::NotEntered, vec![2])
        );
        assert!(
            text.starts_with("rank 2 did not enter collective #8"),
            "{text}"
        );
        // Now rank 2 also waits for rank 0, so the waits form a circle.
        change(&mut ranks[0], |ring| use_of(ring, 3, 1));
        change(&mut ranks[2], |ring| use_of(ring, 3, 2));
        assert_eq!(judged(&ranks).1, VerdictKind::Order);
    }

    #[test]
    fn processes_that_are_all_gone_leave_a_verdict() {
        let mut gone = without_last(1);
        gone.iter_mut().for_each(|rank| rank.life = Life::Gone);
        gone.iter_mut().for_each(|rank| rank.threads.clear());
        let (answer, kind, its, text) = judged(&gone);
        assert_eq!(
            (answer, kind, its),
            (Answer::CannotTell, VerdictKind::NotEntered, vec![3])
        );
        let expected = "all processes are gone; at their end rank 3 did not enter all_reduce #9 of TP (4.00 MiB, bfloat16)";
        assert_eq!(text, expected);
        gone.iter_mut().for_each(|rank| rank.ring.has_ended = true);
        assert_eq!(judged(&gone).1, VerdictKind::Ended);
    }

    #[test]
    fn runs_that_share_nothing_are_judged_apart() {
        let mut ranks = without_last(1);
        ranks[3].threads[0] = asleep(400, "hold_up");
        let mut other = rank(0);
        change(&mut other, |ring| {
            ring.communicators.clear();
            ring.collectives.clear();
        });
        other.ring.steps_begun += 1;
        ranks.push(other);
        assert_eq!(
            judged(&ranks).1,
            VerdictKind::NotEntered,
            "what moves hides nothing"
        );
        // A process that has ended and left its ring does not make the run stuck while the other ranks move.
        let mut moving = super::tests::ranks();
        moving
            .iter_mut()
            .for_each(|rank| rank.ring.steps_begun += 1);
        let mut left = ranks.pop().unwrap();
        left.life = Life::Gone;
        moving.push(left);
        assert_eq!(judged(&moving).1, VerdictKind::Moves);
        assert_eq!(judge(&[]).answer, Answer::CannotTell);
    }

    #[test]
    fn a_process_whose_threads_cannot_be_read_is_not_called_stuck() {
        let mut ranks = ranks();
        ranks.iter_mut().for_each(|rank| rank.threads.clear());
        let (answer, kind, ..) = judged(&ranks);
        assert_eq!((answer, kind), (Answer::CannotTell, VerdictKind::Unclear));
    }
}
