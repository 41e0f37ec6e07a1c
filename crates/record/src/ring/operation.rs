//! The operations of NCCL and their arguments, as a ring (a process's latest steps and collectives) stores them.

use std::fmt;

/// The operation of an NCCL call: a collective, a send or a receive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Collective {
    AllReduce = 1,
    Broadcast = 2,
    Reduce = 3,
    AllGather = 4,
    ReduceScatter = 5,
    AllToAll = 6,
    Send = 7,
    Receive = 8,
}

impl Collective {
    const ALL: [(Self, &'static str); 8] = [
        (Self::AllReduce, "all_reduce"),
        (Self::Broadcast, "broadcast"),
        (Self::Reduce, "reduce"),
        (Self::AllGather, "all_gather"),
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::AllToAll, "all_to_all"),
        (Self::Send, "send"),
        (Self::Receive, "recv"),
    ];

    pub(super) fn from_number(number: u8) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Some(Self::ALL.get(index)?.0)
    }

    /// Returns the call that the other rank of a send or receive makes. `None` for calls of all ranks.
    #[must_use]
    pub const fn counterpart(self) -> Option<Self> {
        match self {
            Self::Send => Some(Self::Receive),
            Self::Receive => Some(Self::Send),
            _ => None,
        }
    }

    /// Returns true if all ranks of a communicator make the call. Send and receive are calls between two
    /// ranks.
    #[must_use]
    pub const fn is_of_all_ranks(self) -> bool {
        self.counterpart().is_none()
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize - 1].1)
    }
}

/// The arguments of an NCCL call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operation {
    pub collective: Collective,
    /// The number of elements that the call transfers.
    pub count: u64,
    /// The data type, as NCCL's number for it.
    pub data_type: u8,
    /// The root rank of the operation, or the other rank of a send or receive; `None` for all other operations.
    pub peer: Option<u32>,
}

impl Operation {
    /// The names of NCCL's data types, and their sizes in bytes.
    const TYPES: [(&'static str, u64); 12] = [
        ("int8", 1),
        ("uint8", 1),
        ("int32", 4),
        ("uint32", 4),
        ("int64", 8),
        ("uint64", 8),
        ("float16", 2),
        ("float32", 4),
        ("float64", 8),
        ("bfloat16", 2),
        ("float8e4m3", 1),
        ("float8e5m2", 1),
    ];

    /// Returns the name of the data type, such as `int8`. For an unknown data type, returns a phrase for messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        let row = Self::TYPES.get(usize::from(self.data_type));
        row.map_or("of an unknown type", |row| row.0)
    }

    /// Returns the number of bytes that the call transfers, if the size of the data type is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let row = Self::TYPES.get(usize::from(self.data_type))?;
        self.count.checked_mul(row.1)
    }
}
