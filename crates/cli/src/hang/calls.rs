//! Reads the calls of NCCL in which ranks wait for each other. The calls come from the ranks' ring files, which hold
//! the latest steps and collectives.

use std::collections::BTreeMap;

use tllmprof_record::{Called, Collective, RingCommunicator};

use super::state::RankState;

/// Returns the collectives of a communicator by number, as far as the rank's ring file (the file with its latest calls)
/// still contains them. Collectives in which only some ranks of the communicator take part are left out.
pub(super) fn calls_of(rank: &RankState, id: u64) -> BTreeMap<u64, &Called> {
    let calls = rank.ring.collectives.iter();
    calls
        .filter(|call| call.communicator == id && call.operation.collective.is_of_all_ranks())
        .map(|call| (call.sequence, call))
        .collect()
}

/// Returns the communicators that at least two of the ranks `part` use, each with the ranks that use it. Communicators
/// whose id is not known (0) are left out.
pub(super) fn shared(ranks: &[RankState], part: &[usize]) -> BTreeMap<u64, Vec<usize>> {
    let mut users: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for index in part {
        for one in &ranks[*index].ring.communicators {
            users.entry(one.id).or_default().push(*index);
        }
    }
    users.retain(|id, users| *id != 0 && users.len() > 1);
    users
}

/// Returns the state of the communicator `id` in the ring file of a rank. `None` if the rank does not use that
/// communicator.
pub(super) fn member(rank: &RankState, id: u64) -> Option<&RingCommunicator> {
    rank.ring.communicators.iter().find(|one| one.id == id)
}

/// Returns all ordered pairs of those ranks in `users` whose ring files (the files with their latest calls) count the
/// sends and receives in the communicator `id`.
pub(super) fn pairs(ranks: &[RankState], id: u64, users: &[usize]) -> Vec<[usize; 2]> {
    let is_counted = |index: &&usize| {
        let member = member(&ranks[**index], id);
        member.is_some_and(|member| member.place.is_some() && member.directions.is_some())
    };
    let users: Vec<_> = users.iter().filter(is_counted).copied().collect();
    let each = users
        .iter()
        .flat_map(|one| users.iter().map(move |other| [*one, *other]));
    each.filter(|[one, other]| one != other).collect()
}

/// Returns the sends or receives (`collective`) that the first rank of a pair has made with the second rank as its
/// peer. The keys are the numbers of the calls. Calls that the first rank's ring file no longer contains are missing.
pub(super) fn transfers(
    ranks: &[RankState],
    id: u64,
    [one, other]: [usize; 2],
    collective: Collective,
) -> BTreeMap<u64, &Called> {
    let place = member(&ranks[other], id).and_then(|member| member.place);
    let peer = place.map(|(number, _)| number);
    let calls = ranks[one].ring.collectives.iter();
    let is_one = |call: &&Called| {
        let operation = &call.operation;
        call.communicator == id && operation.collective == collective && operation.peer == peer
    };
    calls
        .filter(is_one)
        .map(|call| (call.sequence, call))
        .collect()
}

/// Returns the number of sends or receives (`collective`) that the first rank of a pair has made with the second rank
/// as its peer.
pub(super) fn transferred(
    ranks: &[RankState],
    id: u64,
    [one, other]: [usize; 2],
    collective: Collective,
) -> u64 {
    let peer = member(&ranks[other], id).and_then(|member| member.place);
    let directions = member(&ranks[one], id).and_then(|member| member.directions.as_ref());
    let mut directions = directions.into_iter().flatten();
    let found = directions.find(|direction| {
        direction.collective == collective && Some(direction.peer) == peer.map(|(number, _)| number)
    });
    found.map_or(0, |direction| direction.count)
}
