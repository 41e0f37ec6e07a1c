//! The groups that processes belong to: named groups of ranks (such as `TP`), and NCCL
//! communicators.

use std::collections::BTreeMap;

use tllmprof_record::{CommunicatorId, GroupRank, Member};

use crate::collectives::{Operation, ROWS};
use crate::ranks::Rank;

/// The processes in a communicator, or in several communicators that have the same ranks.
#[derive(PartialEq, Eq, Debug)]
struct Set {
    /// Number of ranks in the communicator. It is larger than the number of processes if some ranks
    /// have no record.
    size: u32,
    places: Vec<usize>,
}

/// For each process, the communicators and named groups of which it is a member.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    processes: &'a [Rank<'a>],
    sets: Vec<Set>,
    /// For each process, the indexes in `sets` of the communicators that it is in; `None` if the record names none of
    /// them, or not all.
    of: Vec<Option<Vec<usize>>>,
}

/// The name and the size of a group of processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupName {
    /// The name, such as `TP` or `world`; `communicator` for a communicator without a name.
    pub name: String,
    /// Number of ranks in the group.
    pub size: u64,
}

impl<'a> Members<'a> {
    pub(crate) fn new(processes: &'a [Rank<'a>]) -> Self {
        let mut by_id: BTreeMap<(CommunicatorId, u32), Vec<usize>> = BTreeMap::new();
        let mut are_known = vec![false; processes.len()];
        for (place, process) in processes.iter().enumerate() {
            let all = &process.facts.communicators;
            are_known[place] = all.iter().all(Member::is_known);
            for member in all.iter().filter(|one| one.is_known() && one.size > 1) {
                by_id
                    .entry((member.id, member.size))
                    .or_default()
                    .push(place);
            }
        }
        let mut members = Self {
            processes,
            sets: Vec::new(),
            of: vec![None; processes.len()],
        };
        for ((_, size), mut places) in by_id {
            places.dedup();
            let set = Set { size, places };
            let known = members.sets.iter().position(|known| *known == set);
            let at = known.unwrap_or(members.sets.len());
            for place in set.places.iter().filter(|place| are_known[**place]) {
                let of = members.of[*place].get_or_insert_default();
                if !of.contains(&at) {
                    of.push(at);
                }
            }
            if known.is_none() {
                members.sets.push(set);
            }
        }
        members
    }

    /// Returns true if two processes may be in a common group that runs the collectives of `row`, a
    /// row of the table of kernel names. If false, a collective of one process cannot be the same
    /// as one of the other process.
    pub(crate) fn may_share(&self, row: u8, one: usize, other: usize) -> bool {
        if ROWS[usize::from(row)].is_of_communicator() {
            return match (&self.of[one], &self.of[other]) {
                (Some(one), Some(other)) => one.iter().any(|set| other.contains(set)),
                _ => true,
            };
        }
        let group = |place: usize| {
            let group = self.processes[place].facts.group(group_of(row)?)?;
            Some((group.size?, group.first?))
        };
        group(one)
            .zip(group(other))
            .is_none_or(|(one, other)| one == other)
    }

    /// Returns true if a process is in several communicators. In this case it is not known which
    /// communicator an NCCL kernel of the process used.
    pub(crate) fn is_in_several(&self, place: usize) -> bool {
        self.of[place].as_ref().is_some_and(|sets| sets.len() > 1)
    }

    /// Returns the group in which some processes run collectives together. The group is a communicator if all these
    /// processes are in this communicator and in no other one. A communicator gets the name of a named group that has
    /// the same size and contains all these processes, if there is one. Without a communicator, the group is a named
    /// group with exactly the ranks of these processes. Returns `None` if the group is not known. `row` is the
    /// collectives' row in the table of kernel names.
    pub(crate) fn name(&self, row: u8, places: &[usize]) -> Option<GroupName> {
        let facts = |place: usize| &self.processes[place].facts;
        let first = facts(*places.first()?);
        let set = self.only_set(row, places);
        let size = set.map_or(places.len() as u64, |set| u64::from(set.size));
        // True if the group has the size `size` and all these processes belong to it.
        let is_all = |group: &&GroupRank| {
            group.first.is_some()
                && group.size.map(u64::from) == Some(size)
                && places.iter().all(|place| {
                    let own = facts(*place).group(&group.name);
                    own.is_some_and(|own| (own.first, own.size) == (group.first, group.size))
                })
        };
        let preferred = group_of(row);
        let mut named: Vec<_> = first.groups.iter().filter(is_all).collect();
        named.sort_by_key(|group| Some(&*group.name) != preferred);
        let is_world = || {
            places
                .iter()
                .all(|place| facts(*place).world_size == Some(size))
        };
        let name = match (named.first(), set) {
            (Some(group), _) => &group.name,
            (None, Some(_)) if is_world() => "world",
            (None, Some(_)) => "communicator",
            (None, None) => return None,
        };
        Some(GroupName {
            name: name.to_owned(),
            size,
        })
    }

    /// Returns the communicator that all these processes are in, if none of them is in another communicator; otherwise
    /// `None`. Also returns `None` for collectives that do not use a communicator.
    fn only_set(&self, row: u8, places: &[usize]) -> Option<&Set> {
        if !ROWS[usize::from(row)].is_of_communicator() {
            return None;
        }
        let only = |place: &usize| match self.of[*place].as_deref() {
            Some([set]) => Some(*set),
            _ => None,
        };
        let set = only(places.first()?)?;
        let is_it = |place: &usize| only(place) == Some(set);
        places.iter().all(is_it).then(|| &self.sets[set])
    }
}

/// Returns the name of the group in which inference engines run the collectives of this row in the
/// table of kernel names; `None` if a communicator determines the group.
fn group_of(row: u8) -> Option<&'static str> {
    let row = &ROWS[usize::from(row)];
    match row.operation {
        Operation::Dispatch | Operation::Combine => Some("EP"),
        Operation::AllReduce if row.is_of_engine() => Some("TP"),
        _ => None,
    }
}
