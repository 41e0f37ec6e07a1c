//! Finds ranks whose calls of NCCL do not match those of other ranks.

use std::collections::BTreeSet;

use tllmprof_record::{Called, Collective, Operation};

use super::calls::{calls_of, pairs, shared, transfers};
use super::state::RankState;
use super::verdict::{Answer, HangVerdict, VerdictKind};
use super::wording::{arguments, communicator, names};

/// Returns the verdict on the first collective at which ranks called different operations, or on a send whose receive
/// has another size. The collectives of a communicator are numbered, and calls with the same number have to match.
/// Returns `None` if all calls match.
pub(super) fn mismatch(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    let shared = shared(ranks, part);
    let mut shared = shared.iter();
    shared.find_map(|(id, users)| {
        mismatch_in(ranks, *id, users).or_else(|| transfer_mismatch(ranks, *id, users))
    })
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
        // Two ranks may have called the same operations in different orders. This is assumed if one of them called, as
        // its next collective, the operation that the other one called as collective `number`.
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

/// Returns the verdict on the first send whose matching receive, on the other rank, has another size.
fn transfer_mismatch(ranks: &[RankState], id: u64, users: &[usize]) -> Option<HangVerdict> {
    let pairs = pairs(ranks, id, users);
    pairs.into_iter().find_map(|[sender, receiver]| {
        let sends = transfers(ranks, id, [sender, receiver], Collective::Send);
        let receives = transfers(ranks, id, [receiver, sender], Collective::Receive);
        let size = |call: &&Called| call.operation.bytes();
        let (number, send, receive) = sends.iter().find_map(|(number, send)| {
            let receive = receives.get(number)?;
            let sizes = size(send).zip(size(receive));
            sizes
                .is_some_and(|(sent, received)| sent != received)
                .then_some((number, *send, *receive))
        })?;
        let text = format!(
            "{} called send ({}) as #{number} to {} in {}, which called recv ({})",
            ranks[sender].name(),
            arguments(&send.operation),
            ranks[receiver].name(),
            communicator(&ranks[sender], id),
            arguments(&receive.operation)
        );
        let its = vec![sender, receiver];
        Some(HangVerdict::new(
            Answer::Stuck,
            VerdictKind::Mismatch,
            its,
            text,
        ))
    })
}

/// Returns the verdict on ranks whose CUDA graphs contain other collectives than the graphs of the other ranks. `None`
/// if all graphs contain the same collectives. A communicator is skipped if the list of collectives of one of its ranks
/// may be incomplete. Call this only if all ranks wait for the GPU, because the lists differ while ranks are still
/// capturing.
pub(super) fn captured_mismatch(ranks: &[RankState], part: &[usize]) -> Option<HangVerdict> {
    const WHOLE: usize = 256;
    for (id, users) in &shared(ranks, part) {
        let list = |index: &usize| {
            let all = &ranks[*index].ring.captured;
            let mut its: Vec<(Operation, u64)> = Vec::new();
            // Only collectives in which all ranks of the communicator take part are compared, because these must be
            // the same on each rank. Sends and receives differ between ranks.
            for one in all
                .iter()
                .filter(|one| one.communicator == *id && one.operation.collective.is_of_all_ranks())
            {
                match its.last_mut() {
                    Some((operation, times)) if *operation == one.operation => *times += one.times,
                    _ => its.push((one.operation, one.times)),
                }
            }
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
