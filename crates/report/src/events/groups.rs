//! The groups that a process is in, as its record says.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{GroupRank, Member};

/// A process's place in a group of ranks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GroupRank")]
pub struct GroupPlace {
    /// The group's name: `TP`, `PP`, `EP` or `DP`.
    name: String,
    /// The process's rank in it.
    rank: u32,
    /// How many ranks it has; `null`: not known.
    #[schemars(extend("unit" = "ranks"))]
    size: Option<u32>,
    /// The rank in the job of its first rank, by which groups of one name differ; `null`: not known.
    first: Option<u64>,
}

/// A communicator of NCCL that a process is in.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Communicator")]
pub struct Communicator {
    /// Which one: the same on all its ranks, in hexadecimal digits; `null`: not known, as NCCL was not given its identifier here.
    id: Option<String>,
    /// The process's rank in it; `null` likewise.
    rank: Option<u32>,
    /// How many ranks it has; `null` likewise.
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

/// Writes groups.
///
/// # Errors
/// Where they cannot be written.
pub fn write_groups<S: Serializer>(all: &[GroupRank], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(GroupPlace::from))
}

/// Writes communicators.
///
/// # Errors
/// Where they cannot be written.
pub fn write_communicators<S: Serializer>(
    all: &[Member],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(Communicator::from))
}
