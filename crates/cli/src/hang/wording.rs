//! Names for ranks, communicators and calls, for the texts of the verdicts of `tllmprof hang`.

use tllmprof_record::{Called, Collective, Operation};
use tllmprof_report::Bytes;

use super::state::RankState;

/// Returns the verb for the ranks `which`.
pub(super) const fn is_or_are(which: &[usize]) -> &'static str {
    if which.len() == 1 { "is" } else { "are" }
}

/// Returns the names of the ranks `which` as text, such as `rank 3 and rank 5`. Of more than four ranks, the text names
/// the first four and the number of the others.
pub(super) fn names(ranks: &[RankState], which: &[usize]) -> String {
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

pub(super) fn last_of(rank: &RankState) -> String {
    match rank.ring.collectives.last() {
        Some(call) => format!(" after {}", collective(rank, call)),
        None => String::new(),
    }
}

/// Returns a name for the communicator `id` of this rank, for messages.
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

pub(super) fn arguments(operation: &Operation) -> String {
    match operation.bytes() {
        Some(bytes) => format!("{}, {}", Bytes(bytes), operation.type_name()),
        None => format!("{} elements", operation.count),
    }
}

/// Returns a description of a collective, send or receive, with its number, communicator and arguments.
pub(crate) fn collective(rank: &RankState, call: &Called) -> String {
    let operation = &call.operation;
    format!(
        "{} ({})",
        numbered(
            rank,
            call.communicator,
            operation.collective,
            call.sequence,
            operation.peer
        ),
        arguments(operation)
    )
}

/// Returns a description of a call: its kind, its number, its communicator and, for a send or receive, the other rank.
pub(super) fn numbered(
    rank: &RankState,
    id: u64,
    collective: Collective,
    number: u64,
    peer: Option<u32>,
) -> String {
    let with = match (collective, peer) {
        (Collective::Send, Some(peer)) => format!(" to rank {peer}"),
        (Collective::Receive, Some(peer)) => format!(" from rank {peer}"),
        _ => String::new(),
    };
    format!("{collective} #{number}{with} of {}", communicator(rank, id))
}
