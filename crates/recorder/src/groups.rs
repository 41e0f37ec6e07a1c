//! The NCCL communicators and named groups of ranks that the process belongs to. Communicators that the
//! program creates before the record begins are stored in this module and written later.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CommunicatorId, GroupRank, Info, Member};
use tllmprof_sync::Lock;

use super::facts::write_shown;
use super::{is_on, is_wanted, ring};

/// The number of entries for communicators. The last entry stands for all communicators that do not fit into the
/// others, and its rank and size are unknown.
const MAX_COMMUNICATORS: usize = 256;

/// An NCCL communicator that the program created.
#[derive(Clone, Copy)]
struct Communicator {
    member: Member,
    /// The address of the variable in which the program stores the communicator's handle; 0 if the address is
    /// not known.
    slot: usize,
    /// The number of times that this communicator was split.
    splits: u32,
    /// The identifier of a communicator that a split created and whose rank and size are not known yet. `None` for
    /// all other communicators.
    open: Option<CommunicatorId>,
}

impl Communicator {
    const UNKNOWN: Self = Self::new(Member::UNKNOWN, 0);

    const fn new(member: Member, slot: usize) -> Self {
        Self {
            member,
            slot,
            splits: 0,
            open: None,
        }
    }

    /// Returns the process's rank in the communicator, and the communicator's size.
    fn place(&self) -> (u64, u64) {
        (self.member.rank.into(), self.member.size.into())
    }
}

/// The communicators created so far, their number, and the number of them that have been written to the record.
struct Communicators {
    all: [Communicator; MAX_COMMUNICATORS],
    count: usize,
    written: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[together(tables)]
    static MADE: Lock<Communicators> = Lock::new(Communicators {
        all: [Communicator::UNKNOWN; MAX_COMMUNICATORS],
        count: 0,
        written: 0,
    });
    /// True if a split has created communicators whose ranks are not known yet.
    #[fork(reset)]
    static ARE_OPEN: AtomicBool = AtomicBool::new(false);
}

/// Stores an NCCL communicator that the program has created, for the record and the ring (the latest steps and
/// collectives). `slot` is the address at which the program stores its handle; 0 if the address is not known.
pub fn communicator(member: Member, slot: usize) {
    add(Communicator::new(member, slot));
}

fn add(communicator: Communicator) {
    if !is_wanted() && !ring::is_wanted() {
        return;
    }
    {
        let mut made = MADE.lock();
        let at = made.count;
        if let Some(place) = made.all.get_mut(at) {
            // If the table is full, the last entry stands for all communicators that do not fit.
            *place = if at + 1 < MAX_COMMUNICATORS {
                communicator
            } else {
                Communicator::UNKNOWN
            };
            if place.open.is_some() {
                ARE_OPEN.store(true, Ordering::Relaxed);
            }
            made.count += 1;
        }
    }
    if is_on() {
        write_pending();
    }
}

/// Called when the program splits a communicator (`ncclCommSplit`). Returns the identifier of the new communicator
/// for `color`. All ranks compute the same identifier, because all ranks split a communicator equally often.
///
/// The communicator that is split is found in one of two ways. `holds` returns true for an address at which its handle
/// is stored. If `holds` returns false for all known addresses, `place` is compared: the process's rank in the
/// communicator, and its size. The communicator is then found if only one has this rank and size.
pub fn split(
    holds: impl Fn(usize) -> bool,
    place: Option<(u64, u64)>,
    color: u32,
) -> CommunicatorId {
    let mut made = MADE.lock();
    let count = made.count;
    parent(&mut made.all[..count], holds, place).map_or(CommunicatorId::UNKNOWN, |parent| {
        parent.splits += 1;
        parent.member.id.part(parent.splits, color)
    })
}

/// Adds the communicator that a split creates. `id` is its identifier, the same on all its ranks. `slot` is the address
/// at which the program stores its handle. `place` is the process's rank in the new communicator, and its size; `None`
/// if NCCL does not know them yet. They are then added when [`part_is_ready`] is called.
pub fn part(id: CommunicatorId, slot: usize, place: Option<(u64, u64)>) {
    let member = place.map_or(Member::UNKNOWN, |place| Member::from_place(id, place));
    let is_open = !member.is_known() && id != CommunicatorId::UNKNOWN;
    let open = is_open.then_some(id);
    add(Communicator {
        open,
        ..Communicator::new(member, slot)
    });
}

/// Returns true if a split has created communicators whose ranks are not known yet.
pub fn are_parts_open() -> bool {
    ARE_OPEN.load(Ordering::Relaxed)
}

/// Called when NCCL can be asked about a communicator. `holds` returns true for the address at which its handle is
/// stored. If a split created the communicator and its rank is not known yet, calls `place` to ask NCCL, and stores the
/// result. If the communicator is already in the record, it is not written again, and its rank stays unknown there.
pub fn part_is_ready(holds: impl Fn(usize) -> bool, place: impl FnOnce() -> Option<(u64, u64)>) {
    let is_it = |one: &Communicator| one.open.is_some() && holds(one.slot);
    let found = {
        let made = MADE.lock();
        made.all[..made.count].iter().rposition(is_it)
    };
    let Some((at, place)) = found.zip(place()) else {
        return;
    };
    let mut made = MADE.lock();
    let part = &mut made.all[at];
    // Several threads may have asked NCCL about this communicator at the same time. The first one
    // stores the result.
    let Some(id) = part.open.take() else {
        return;
    };
    part.member = Member::from_place(id, place);
    let are_open = made.all[..made.count].iter().any(|one| one.open.is_some());
    ARE_OPEN.store(are_open, Ordering::Relaxed);
}

/// Returns the communicator that is being split, found as [`split`] describes: by its stored handle, or by rank and
/// size.
fn parent(
    all: &mut [Communicator],
    holds: impl Fn(usize) -> bool,
    place: Option<(u64, u64)>,
) -> Option<&mut Communicator> {
    let known = |one: &Communicator| one.member.is_known();
    // The latest match counts: an earlier communicator's handle may have been stored at the same address
    // before.
    let holder = all
        .iter()
        .rposition(|one| known(one) && one.slot != 0 && holds(one.slot));
    let only = || {
        let mut alike =
            (0..all.len()).filter(|at| known(&all[*at]) && Some(all[*at].place()) == place);
        alike.next().filter(|_| alike.next().is_none())
    };
    let at = holder.or_else(only)?;
    Some(&mut all[at])
}

/// Writes the communicators that are not in the record yet.
pub(crate) fn write_pending() {
    while let Some(member) = next() {
        write_shown(Info::Communicator, &member);
    }
}

fn next() -> Option<Member> {
    let mut made = MADE.lock();
    let member = made.all[..made.count].get(made.written)?.member;
    made.written += 1;
    Some(member)
}

/// Writes the process's rank in a named group to the record and, if the group's size is known, to the ring. If a group
/// is written several times, the last rank is valid.
pub fn write_group(group: &GroupRank<&str>) {
    if is_on() {
        write_shown(Info::Group, group);
    }
    if let Some(size) = group.size {
        ring::set_group(group.name, group.rank, size);
    }
}

/// Returns the identifier, the rank and the size of a communicator. `holds` returns true for the communicator's slot
/// (the address at which its handle is stored). Rank and size are 0 if they are not known.
pub fn member(holds: impl Fn(usize) -> bool) -> (CommunicatorId, u32, u32) {
    let made = MADE.lock();
    let mut all = made.all[..made.count].iter().rev();
    let found = all.find(|one| one.slot != 0 && holds(one.slot));
    found.map_or((CommunicatorId::UNKNOWN, 0, 0), |one| {
        let id = one.open.unwrap_or(one.member.id);
        (id, one.member.rank, one.member.size)
    })
}

/// Discards all communicators in the child of a fork, which has none.
fn in_child(alone: &OnlyThread) {
    MADE.break_open(alone);
    let mut made = MADE.lock();
    (made.count, made.written) = (0, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(all: &[(&[u8], u32, usize)]) -> Vec<Communicator> {
        let one = |(name, rank, slot): &(&[u8], u32, usize)| {
            let id = CommunicatorId::from_bytes(name);
            let member = Member {
                id,
                rank: *rank,
                size: 4,
            };
            Communicator::new(member, *slot)
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn what_is_split_is_the_latest_whose_handle_is_there_or_the_only_one_of_that_place() {
        let all = made(&[
            (b"one", 1, 0x10),
            (b"two", 1, 0x20),
            (b"three", 1, 0x20),
            (b"four", 2, 0),
        ]);
        let found = |slot: usize, place: Option<(u64, u64)>| {
            parent(&mut all.clone(), |one| one == slot, place).map(|one| one.member.id)
        };
        for (slot, place, name) in [
            (0x10, None, Some(&b"one"[..])),
            (0x20, Some((1, 4)), Some(b"three")),
            (0x30, Some((2, 4)), Some(b"four")),
            (0x30, Some((1, 4)), None),
            (0x30, Some((3, 4)), None),
            (0x30, None, None),
        ] {
            assert_eq!(
                found(slot, place),
                name.map(CommunicatorId::from_bytes),
                "{slot:x} {place:?}"
            );
        }
        let unknown = &mut [Communicator {
            slot: 0x10,
            ..Communicator::UNKNOWN
        }];
        assert!(parent(unknown, |_| true, Some((0, 0))).is_none());
    }
}
