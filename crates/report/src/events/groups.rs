//! The groups that a process is in, as its record says.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_engines::GROUPS;
use tllmprof_record::{GroupRank, Member};

use super::facts::Facts;

/// How many communicators and groups of a process are kept.
const MOST: usize = 256;

impl Facts {
    /// Takes a communicator, if the text is one.
    pub fn add_communicator(&mut self, text: &str) {
        let communicator = text.parse().ok();
        if let Some(member) = communicator.filter(|_| self.communicators.len() < MOST) {
            self.communicators.push(member);
        }
    }

    /// Takes a group, if the text is one: the latest of its name counts.
    pub fn add_group(&mut self, text: &str) {
        let Ok(group) = text.parse::<GroupRank>() else {
            return;
        };
        self.groups.retain(|known| known.name != group.name);
        if self.groups.len() < MOST {
            self.groups.push(group);
        }
        // In the order in which they are shown.
        let place = |group: &GroupRank| GROUPS.iter().position(|name| *name == group.name);
        self.groups
            .sort_by_key(|group| place(group).unwrap_or(GROUPS.len()));
    }

    /// The process's place in its groups: `TP1 of 4, DP0`; empty where none is known.
    pub(super) fn name_groups(&self) -> String {
        let groups = self.groups.iter().map(|group| match group.size {
            Some(size) => format!("{}{} of {size}", group.name, group.rank),
            None => format!("{}{}", group.name, group.rank),
        });
        groups.collect::<Vec<_>>().join(", ")
    }

    /// The process's rank, and its place in its groups: `rank 5, TP1 of 4, DP0`.
    #[must_use]
    pub fn rank_name(&self) -> String {
        let rank = format!("rank {}", self.rank);
        match &*self.in_groups {
            "" => rank,
            groups => format!("{rank}, {groups}"),
        }
    }

    /// Its place in the group of that name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&GroupRank> {
        self.groups.iter().find(|group| group.name == name)
    }
}

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
