//! The groups of ranks that a process belongs to: NCCL communicators, and named groups. A record stores them
//! as texts.

use std::fmt;
use std::str::FromStr;

use crate::check::Words;

/// The largest plausible number of ranks in a group. A larger number in a record means that the record is
/// damaged.
const MAX_RANKS: u32 = 1 << 20;

/// A communicator's id, which is the same on all of its ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommunicatorId(u64);

impl CommunicatorId {
    /// The id of a communicator whose `ncclUniqueId` the library has not seen.
    pub const UNKNOWN: Self = Self(0);

    /// Returns the id of a communicator, computed from the bytes of one or several `ncclUniqueId`s. The
    /// bytes, and so the id, are the same on all ranks.
    #[must_use]
    pub fn from_bytes(unique: &[u8]) -> Self {
        let words = unique.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        Self(Words::check_all(words).max(1))
    }

    /// Returns the id as a number; 0 if it is unknown.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the id of the communicator that a split of this communicator creates for `color`. The splits of a
    /// communicator are numbered from 1; `number` is the number of this split.
    #[must_use]
    pub fn part(self, number: u32, color: u32) -> Self {
        let split = u64::from(number) << 32 | u64::from(color);
        Self(Words::check_all([self.0, split]).max(1))
    }
}

impl fmt::Display for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The process's membership in a communicator. Its text form is `ID RANK SIZE`, where the id has 16
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    pub id: CommunicatorId,
    pub rank: u32,
    /// The number of ranks in the communicator; 0 if the process's rank and the size are not known.
    pub size: u32,
}

impl Member {
    /// The membership in a communicator whose id, rank and size are not known.
    pub const UNKNOWN: Self = Self {
        id: CommunicatorId::UNKNOWN,
        rank: 0,
        size: 0,
    };

    /// Returns the membership with this rank and size. Returns [`Self::UNKNOWN`] if the rank is not less than the
    /// size, if either needs more than 32 bits, or if `id` is unknown.
    #[must_use]
    pub fn from_place(id: CommunicatorId, (rank, size): (u64, u64)) -> Self {
        match (u32::try_from(rank), u32::try_from(size)) {
            (Ok(rank), Ok(size)) if rank < size && id != CommunicatorId::UNKNOWN => {
                Self { id, rank, size }
            }
            _ => Self::UNKNOWN,
        }
    }

    /// Returns true if the communicator's id is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.id != CommunicatorId::UNKNOWN
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.id, self.rank, self.size)
    }
}

impl FromStr for Member {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let id = words.next().filter(|id| id.len() == 16).ok_or(())?;
        let id = CommunicatorId(u64::from_str_radix(id, 16).map_err(|_| ())?);
        let (rank, size) = (number(words.next())?, number(words.next())?);
        let is_member = rank < size && size <= MAX_RANKS;
        let member = Self { id, rank, size };
        let is_right = words.next().is_none() && (is_member || member == Self::UNKNOWN);
        is_right.then_some(member).ok_or(())
    }
}

/// The process's rank in a named group. Its text form is `NAME RANK SIZE FIRST`, with `-` for unknown values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupRank<N = String> {
    /// The name of the group, such as `TP`.
    pub name: N,
    pub rank: u32,
    /// The number of ranks in the group; `None` if it is not known.
    pub size: Option<u32>,
    /// The rank, in the whole job, of the group's first member; `None` if it is not known. This rank distinguishes
    /// groups with the same name.
    pub first: Option<u64>,
}

impl<N: fmt::Display> fmt::Display for GroupRank<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.rank)?;
        match self.size {
            Some(size) => write!(f, " {size}")?,
            None => f.write_str(" -")?,
        }
        match self.first {
            Some(first) => write!(f, " {first}"),
            None => f.write_str(" -"),
        }
    }
}

impl FromStr for GroupRank {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default();
        let is_name = |name: &str| {
            (1..=8).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_uppercase())
        };
        let rank = number(words.next())?;
        let size = known(words.next(), number)?;
        let first = known(words.next(), number)?;
        let is_right = is_name(name)
            && rank < size.unwrap_or(MAX_RANKS)
            && size.is_none_or(|size| size <= MAX_RANKS)
            && words.next().is_none();
        is_right
            .then(|| Self {
                name: name.to_owned(),
                rank,
                size,
                first,
            })
            .ok_or(())
    }
}

fn number<T: FromStr>(word: Option<&str>) -> Result<T, ()> {
    word.and_then(|word| word.parse().ok()).ok_or(())
}

/// Parses a word with `read`. The word `-` stands for an unknown value and gives `None`.
fn known<T>(
    word: Option<&str>,
    read: impl FnOnce(Option<&str>) -> Result<T, ()>,
) -> Result<Option<T>, ()> {
    match word {
        Some("-") => Ok(None),
        word => read(word).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identifier_alone_says_which_communicator_it_is() {
        let mut unique = [0_u8; 128];
        unique[..10].copy_from_slice(b"identified");
        let one = CommunicatorId::from_bytes(&unique);
        assert_eq!(one, CommunicatorId::from_bytes(&unique));
        unique[127] = 1;
        assert_ne!(one, CommunicatorId::from_bytes(&unique));
        assert_ne!(
            CommunicatorId::from_bytes(&[0; 128]),
            CommunicatorId::UNKNOWN
        );
        // This expected value must never change: ranks may run different versions of the library, and must compute
        // the same id for a communicator.
        assert_eq!(one.to_string(), "7cd6dc417565fd24");
    }

    #[test]
    fn parts_differ_by_what_is_split_by_which_split_and_by_color() {
        let [one, other] = [b"one", b"two"].map(|name| CommunicatorId::from_bytes(name));
        let parts = [
            one.part(1, 0),
            one.part(1, 1),
            one.part(2, 0),
            other.part(1, 0),
            one.part(1, 0).part(1, 0),
            one,
        ];
        for (at, part) in parts.iter().enumerate() {
            assert!(!parts[..at].contains(part), "{at}");
        }
        assert_eq!(
            CommunicatorId::from_bytes(b"one").part(1, 1).to_string(),
            "b88c2bd306b01edf"
        );
    }

    #[test]
    fn a_rank_that_is_none_is_of_no_communicator() {
        let id = CommunicatorId::from_bytes(b"some");
        assert!(Member::from_place(id, (3, 4)).is_known());
        for place in [(4, 4), (0, 0), (0, 1 << 32)] {
            assert_eq!(Member::from_place(id, place), Member::UNKNOWN, "{place:?}");
        }
        assert_eq!(
            Member::from_place(CommunicatorId::UNKNOWN, (0, 1)),
            Member::UNKNOWN
        );
    }

    #[test]
    fn texts_are_read_as_they_were_written() {
        let id = CommunicatorId::from_bytes(b"some");
        for member in [
            Member {
                id,
                rank: 3,
                size: 4,
            },
            Member::UNKNOWN,
        ] {
            assert_eq!(member.to_string().parse(), Ok(member));
        }
        for (size, first) in [
            (Some(4), Some(1 << 40)),
            (None, Some(0)),
            (Some(4), None),
            (None, None),
        ] {
            let group = GroupRank {
                name: "TP".to_owned(),
                rank: 1,
                size,
                first,
            };
            assert_eq!(group.to_string().parse(), Ok(group));
        }
    }

    #[test]
    fn damaged_texts_are_no_groups() {
        for text in [
            "",
            "0123456789abcdef 4 4",
            "0123456789abcdef 0 9999999",
            "0123456789abcdef 1",
            "0123456789abcdef 0 4 4",
            "0123456789abcde 0 4",
            "0123456789abcdeg 0 4",
            "0123456789abcdef -1 4",
        ] {
            assert_eq!(text.parse::<Member>(), Err(()), "{text}");
        }
        for text in [
            "",
            "TP",
            "TP 1",
            "TP 1 4",
            "TP 4 4 0",
            "tp 1 4 0",
            " 1 4 0",
            "TP 1 4 0 0",
            "TP - 4 0",
            "TP 1 4 x",
        ] {
            assert_eq!(text.parse::<GroupRank>(), Err(()), "{text}");
        }
    }
}
