//! Finds the rank for which other ranks wait in calls of NCCL.

use tllmprof_record::{Collective, Operation};
use tllmprof_report::Time;

use super::calls::{calls_of, member, pairs, shared, transferred, transfers};
use super::cause::StuckCause;
use super::state::RankState;
use super::verdict::{Answer, HangVerdict, VerdictKind};
use super::wording::{arguments, communicator, names, numbered};

/// A call of NCCL that some ranks have entered and that other ranks (the late ones) still have to enter.
struct MissingCall {
    communicator: u64,
    /// The kind of call that the late ranks have to make, such as a receive. `None` for a collective that is no longer
    /// in the ring files (the files with the latest calls) of the ranks `ahead`.
    collective: Option<Collective>,
    number: u64,
    /// For a send or receive: the rank that has entered its side of the transfer, by its number in the communicator.
    /// `None` for a collective.
    peer: Option<u32>,
    /// The arguments with which one of the ranks `ahead` has entered the call. `None` if no ring file still contains
    /// them.
    operation: Option<Operation>,
    late: Vec<usize>,
    ahead: Vec<usize>,
}

impl MissingCall {
    /// Returns the first collective of the communicator `id` that some of the ranks `users` have entered and others
    /// have not. `None` if all ranks have entered the same number of collectives. All ranks in `users` use the
    /// communicator.
    fn find_collective(ranks: &[RankState], id: u64, users: &[usize]) -> Option<Self> {
        let sequence = |index: &usize| ranks[*index].sequence(id);
        let least = users.iter().filter_map(sequence).min()?;
        let (late, ahead): (Vec<_>, Vec<_>) = users
            .iter()
            .filter(|index| sequence(index).is_some())
            .partition(|index| sequence(index) == Some(least));
        let mut calls = ahead
            .iter()
            .filter_map(|index| calls_of(&ranks[*index], id).get(&least).copied());
        let operation = calls.next().map(|call| call.operation);
        (!ahead.is_empty()).then_some(Self {
            communicator: id,
            collective: operation.map(|operation| operation.collective),
            number: least,
            peer: None,
            operation,
            late,
            ahead,
        })
    }

    /// Finds sends whose receiver has not entered the matching receive, and receives whose sender has not entered the
    /// matching send. For each pair of ranks and each direction, only the first such call is returned.
    fn find_transfers(ranks: &[RankState], id: u64, users: &[usize]) -> Vec<Self> {
        let mut found = Vec::new();
        for [ahead, late] in pairs(ranks, id, users) {
            for (entered, missing) in [
                (Collective::Send, Collective::Receive),
                (Collective::Receive, Collective::Send),
            ] {
                let number = transferred(ranks, id, [late, ahead], missing);
                if transferred(ranks, id, [ahead, late], entered) <= number {
                    continue;
                }
                let calls = transfers(ranks, id, [ahead, late], entered);
                let place = member(&ranks[ahead], id).and_then(|member| member.place);
                found.push(Self {
                    communicator: id,
                    collective: Some(missing),
                    number,
                    peer: place.map(|(number, _)| number),
                    operation: calls.get(&number).map(|call| call.operation),
                    late: vec![late],
                    ahead: vec![ahead],
                });
            }
        }
        found
    }

    /// Returns a description of the missing call, for the verdict.
    fn text(&self, ranks: &[RankState]) -> String {
        let rank = &ranks[self.late[0]];
        let (id, number) = (self.communicator, self.number);
        let what = match self.collective {
            Some(collective) => numbered(rank, id, collective, number, self.peer),
            None => format!("collective #{number} of {}", communicator(rank, id)),
        };
        match &self.operation {
            Some(operation) => format!("{what} ({})", arguments(operation)),
            None => what,
        }
    }
}

/// Finds the rank, among the ranks `part`, for which other ranks wait: they have entered a collective, send or receive
/// that this rank has not entered. A rank that itself waits for another rank is not the cause. If each late rank waits
/// for another one, the verdict is that the ranks wait for each other. Returns `None` if no rank is late in any call.
pub(super) fn behind(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    let mut missing = Vec::new();
    for (id, users) in &shared(ranks, part) {
        missing.extend(MissingCall::find_collective(ranks, *id, users));
        missing.extend(MissingCall::find_transfers(ranks, *id, users));
    }
    // If a rank has entered a call that other ranks have not entered, it waits in that call for these ranks. So the
    // rank that is the cause is late in one call and waits in no other call.
    let waits = |index: &usize| missing.iter().any(|one| one.ahead.contains(index));
    let first = missing
        .iter()
        .find(|one| one.late.iter().any(|index| !waits(index)));
    let Some(first) = first else {
        let first = missing.first()?;
        let text = format!(
            "ranks wait for each other in different calls: {} did not enter {}",
            names(ranks, &first.late),
            first.text(ranks)
        );
        let its = first.late.clone();
        return Some(HangVerdict::new(
            Answer::Stuck,
            VerdictKind::Order,
            its,
            text,
        ));
    };
    let late = first.late.iter().copied();
    let late: Vec<_> = late.filter(|index| !waits(index)).collect();
    let rank = &ranks[late[0]];
    let what = first.text(ranks);
    let since = rank
        .quiet_ns
        .map_or(String::new(), |quiet| format!(" since {}", Time(quiet)));
    let cause = StuckCause::find(rank);
    let (answer, kind) = match &cause {
        Some(cause) if cause.kind == VerdictKind::Busy => (Answer::NotStuck, VerdictKind::Busy),
        Some(cause) if cause.kind == VerdictKind::Idle && rank.waits_for_requests() => {
            (Answer::NotStuck, VerdictKind::Idle)
        }
        Some(cause)
            if matches!(
                cause.kind,
                VerdictKind::Deadlock | VerdictKind::Lock | VerdictKind::Gil | VerdictKind::Queue
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
