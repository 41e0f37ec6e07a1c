//! The descendant processes of the command `tllmprof`, and which of these processes use CUDA.

use std::collections::HashMap;

use crate::driver_user::has_driver;
use crate::live::process_numbers;
use crate::process_status::ProcessStatus;

/// The descendant processes of the command, as found by the latest search.
pub(crate) struct ProcessFamily {
    /// The process id of the command whose descendants are searched for.
    command: u64,
    /// The descendant processes of the command, by process id. The flag is true if the process has loaded the CUDA
    /// driver.
    members: HashMap<u64, bool>,
}

impl ProcessFamily {
    pub(crate) fn new(command: u32) -> Self {
        Self {
            command: command.into(),
            members: HashMap::new(),
        }
    }

    /// Finds the processes that are now descendants of the command.
    pub(crate) fn search(&mut self) {
        let parent = |number| Some((number, ProcessStatus::read(number)?.parent()?));
        let parents: HashMap<_, _> = process_numbers().filter_map(parent).collect();
        let is_below = |number: &u64| {
            // At most as many ancestors are followed as there are processes. This ends the search if process ids were
            // reused while they were read, which can make the chain of parents a loop.
            let above = std::iter::successors(parents.get(number), |above| parents.get(above));
            above
                .take(parents.len())
                .any(|above| *above == self.command)
        };
        let known = std::mem::take(&mut self.members);
        let below = parents.keys().filter(|number| is_below(number));
        self.members = below
            .map(|number| {
                let has_driver = known.get(number).copied().unwrap_or(false) || has_driver(*number);
                (*number, has_driver)
            })
            .collect();
    }

    /// Returns true if process `number` is a descendant of the command.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.members.contains_key(&number.into())
    }

    /// Returns the ids of those descendant processes that have loaded the CUDA driver.
    pub(crate) fn users(&self) -> impl Iterator<Item = u64> {
        let users = self.members.iter().filter(|(_, has_driver)| **has_driver);
        users.map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_belongs_to_the_family_until_it_ends() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut family = ProcessFamily::new(std::process::id());
        assert!(!family.contains(child.id()));
        family.search();
        assert!(family.contains(child.id()));
        assert!(!family.contains(std::process::id()) && !family.contains(1));
        drop(child.stdin.take());
        child.wait().unwrap();
        family.search();
        assert!(!family.contains(child.id()));
        assert_eq!(family.users().count(), 0);
    }
}
