//! The groups that the process is in: those that a program makes before there is a record are kept for it.

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CommunicatorId, GroupRank, Info, Member};
use tllmprof_sync::Lock;

use super::facts::write_shown;
use super::{is_on, is_wanted};

/// How many communicators are kept: of those that come then nothing is known.
const MOST: usize = 256;

/// A communicator that was made.
#[derive(Clone, Copy)]
struct Communicator {
    member: Member,
    /// Where the program keeps its handle; 0: not known.
    slot: usize,
    /// How often it was split.
    splits: u32,
}

impl Communicator {
    const UNKNOWN: Self = Self {
        member: Member::UNKNOWN,
        slot: 0,
        splits: 0,
    };

    /// Its rank here, and its size.
    fn place(&self) -> (u32, u32) {
        (self.member.rank, self.member.size)
    }
}

/// Communicators that were made, and how many of them are in the record.
struct Made {
    all: [Communicator; MOST],
    count: usize,
    written: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static MADE: Lock<Made> = Lock::new(Made {
        all: [Communicator::UNKNOWN; MOST],
        count: 0,
        written: 0,
    });
}

/// The program makes a communicator of NCCL, whose handle it keeps at the address `slot`; 0: that is not known.
pub fn communicator(member: Member, slot: usize) {
    if !is_wanted() {
        return;
    }
    {
        let mut made = MADE.lock();
        let at = made.count;
        if let Some(place) = made.all.get_mut(at) {
            // The last one stands for all that are too many.
            *place = if at + 1 < MOST {
                Communicator {
                    member,
                    slot,
                    splits: 0,
                }
            } else {
                Communicator::UNKNOWN
            };
            made.count += 1;
        }
    }
    if is_on() {
        write_pending();
    }
}

/// The program splits a communicator, whose rank here and size are `place`: what that of a color is known by on all its ranks. All ranks
/// of a communicator split it equally often. `holds` says whether a slot has the handle of the one that is split. Where none has, the only
/// one of that place is meant.
pub fn split(
    holds: impl Fn(usize) -> bool,
    place: Option<(u32, u32)>,
    color: u32,
) -> CommunicatorId {
    let mut made = MADE.lock();
    let count = made.count;
    parent(&mut made.all[..count], holds, place).map_or(CommunicatorId::UNKNOWN, |parent| {
        parent.splits += 1;
        parent.member.id.part(parent.splits, color)
    })
}

/// The one that is split.
fn parent(
    all: &mut [Communicator],
    holds: impl Fn(usize) -> bool,
    place: Option<(u32, u32)>,
) -> Option<&mut Communicator> {
    let known = |one: &Communicator| one.member.is_known();
    // The latest: the program may have kept another there before.
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
pub fn write_pending() {
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

/// Writes the process's place in a group. Of each name what is written last holds.
pub fn write_group(group: &GroupRank<&str>) {
    if is_on() {
        write_shown(Info::Group, group);
    }
}

/// The child of a fork has made none.
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
            let id = CommunicatorId::of(name);
            let member = Member {
                id,
                rank: *rank,
                size: 4,
            };
            Communicator {
                member,
                slot: *slot,
                splits: 0,
            }
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
        let found = |slot: usize, place: Option<(u32, u32)>| {
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
                name.map(CommunicatorId::of),
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
