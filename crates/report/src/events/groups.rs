//! The groups of ranks that a process belongs to, such as tensor-parallel groups, from its record.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{GroupRank, Member};

/// A group of ranks that a process belongs to, and the process's rank in that group.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GroupRank")]
pub(crate) struct GroupPlace {
    /// The name of the group: `TP` (tensor parallel), `PP` (pipeline parallel), `EP` (expert parallel) or `DP` (data
    /// parallel).
    name: String,
    /// The process's rank in the group, counted from 0.
    rank: u32,
    /// The number of ranks in the group; `null` if it is not known.
    #[schemars(extend("unit" = "ranks"))]
    size: Option<u32>,
    /// The first member's rank in the whole job. This rank distinguishes groups that have the same name. `null` if it
    /// is not known.
    first: Option<u64>,
}

/// An NCCL communicator that a process created.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Communicator")]
pub(crate) struct Communicator {
    /// The communicator's identifier in hexadecimal digits, which is the same on all its ranks; `null` if this process
    /// did not pass an identifier to NCCL.
    id: Option<String>,
    /// The process's rank in the communicator; `null` if it is not known.
    rank: Option<u32>,
    /// The number of ranks in the communicator; `null` if it is not known.
    #[schemars(extend("unit" = "ranks"))]
    size: Option<u32>,
}

impl From<&GroupRank> for GroupPlace {
    fn from(group: &GroupRank) -> Self {
        Self {
            name: group.name.clone(),
            rank: group.rank,
            size: group.size,
            first: group.first,
        }
    }
}

impl From<&Member> for Communicator {
    fn from(member: &Member) -> Self {
        let known = member.is_known();
        Self {
            id: known.then(|| member.id.to_string()),
            rank: known.then_some(member.rank),
            size: known.then_some(member.size),
        }
    }
}

/// Writes groups of ranks as JSON.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write_groups<S: Serializer>(
    all: &[GroupRank],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(GroupPlace::from))
}

/// Writes communicators as JSON.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write_communicators<S: Serializer>(
    all: &[Member],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(Communicator::from))
}
