//! The groups that a process is in, as its record says.

use tllmprof_engines::GROUPS;
use tllmprof_record::GroupRank;

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
    #[must_use]
    pub fn in_groups(&self) -> String {
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
        match &*self.in_groups() {
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
