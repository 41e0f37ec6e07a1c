//! Processes that share a GPU. The driver lists them; this module determines which of them belong to the run.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use tllmprof_config::{RunId, variable};
use tllmprof_record::{Event, GpuOwner, NO_STRING, StreamWriter, StringId, What};

use super::family::ProcessFamily;
use super::gpu::MeasuredValues;

/// The name of the host's PID namespace, as `/proc/self/ns/pid` shows it. The number is the same on all Linux machines.
const HOST_NAMESPACE: &str = "pid:[4026531836]";

/// A process that the driver lists, with its share of the SMs' time in percent.
type ListedProcess = (u32, Option<u8>);

/// The data that decide if a process that uses a GPU belongs to this run or to others. `names` contains, for each
/// process, the number that the process's name has in the record.
pub(crate) struct GpuShares {
    /// True if the process ids that the driver lists certainly belong to this PID namespace.
    is_host: bool,
    names: HashMap<u32, StringId>,
    /// The variable `NAME=VALUE` that all processes of the run inherit.
    variable: String,
    /// For each examined process that is not a descendant of the command: true if the process has `variable`, as
    /// other tasks of the same job do.
    tasks: HashMap<u32, bool>,
}

impl GpuShares {
    pub(crate) fn new(run: &RunId) -> Self {
        let namespace = fs::read_link("/proc/self/ns/pid");
        Self {
            is_host: namespace.is_ok_and(|link| link.as_os_str() == HOST_NAMESPACE),
            names: HashMap::new(),
            variable: format!("{}={run}", variable::run),
            tasks: HashMap::new(),
        }
    }

    /// Writes to the record which processes the driver lists for a GPU, with the start and end time of the sample
    /// `taken`.
    pub(crate) fn keep(
        &mut self,
        record: &mut StreamWriter,
        device: u8,
        taken: &MeasuredValues,
        listed: &[ListedProcess],
        family: &mut ProcessFamily,
    ) -> io::Result<()> {
        if listed.iter().any(|(pid, _)| !family.contains(*pid)) {
            // Some of the run's processes may have started since the last search.
            family.search();
        }
        let users = family.users().count();
        let mut is_ours = |pid| family.contains(pid) || self.is_task(pid);
        let ours: HashSet<_> = listed
            .iter()
            .map(|(pid, _)| *pid)
            .filter(|pid| is_ours(*pid))
            .collect();
        for (pid, owner, sm) in owners(listed, self.is_host, users, |pid| ours.contains(&pid)) {
            let name = match pid {
                0 => NO_STRING,
                _ if owner == GpuOwner::Unknown => NO_STRING,
                _ => self.name(record, pid)?,
            };
            let what = What::GpuProcess {
                device,
                owner,
                sm,
                name,
                pid,
            };
            record.push(&Event::new(taken.start, taken.end - taken.start, what))?;
        }
        Ok(())
    }

    fn is_task(&mut self, pid: u32) -> bool {
        *self.tasks.entry(pid).or_insert_with(|| {
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut entries = variables.split(|byte| *byte == 0);
            entries.any(|entry| entry == self.variable.as_bytes())
        })
    }

    fn name(&mut self, record: &mut StreamWriter, pid: u32) -> io::Result<StringId> {
        if let Some(name) = self.names.get(&pid) {
            return Ok(*name);
        }
        let name = match fs::read(format!("/proc/{pid}/comm")) {
            Ok(name) => record.string(String::from_utf8_lossy(&name).trim_end())?,
            Err(_) => NO_STRING,
        };
        self.names.insert(pid, name);
        Ok(name)
    }
}

/// Returns the owner of each process that the driver lists. In a container the driver may list processes by their ids
/// on the host, so that none of them can be identified. Then `users`, the number of the run's processes that can use a
/// GPU, is compared with the number of listed processes. If more processes are listed, the additional ones are
/// attributed to others, with process id 0.
fn owners(
    listed: &[ListedProcess],
    is_host: bool,
    users: usize,
    is_ours: impl Fn(u32) -> bool,
) -> Vec<(u32, GpuOwner, Option<u8>)> {
    // If one of the process ids that the driver lists is that of a process of the run, the driver uses the ids of this
    // PID namespace.
    if is_host || listed.iter().any(|(pid, _)| is_ours(*pid)) {
        let owner = |(pid, sm): &ListedProcess| match is_ours(*pid) {
            true => (*pid, GpuOwner::Run, *sm),
            false => (*pid, GpuOwner::Other, *sm),
        };
        return listed.iter().map(owner).collect();
    }
    // Processes that cannot be identified are sorted by their load, and the least busy ones are assumed to be those of
    // others. So the load of others is at least as high as assumed.
    let mut listed = listed.to_vec();
    listed.sort_by_key(|(_, sm)| Reverse(*sm));
    let owner = |(place, (pid, sm)): (usize, &ListedProcess)| match place < users {
        true => (*pid, GpuOwner::Unknown, *sm),
        false => (0, GpuOwner::Other, *sm),
    };
    listed.iter().enumerate().map(owner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(listed: &[u32], is_host: bool, users: usize) -> Vec<(u32, GpuOwner)> {
        let listed: Vec<_> = listed.iter().map(|pid| (*pid, Some(1))).collect();
        let owners = owners(&listed, is_host, users, |pid| pid == 7);
        owners
            .into_iter()
            .map(|(pid, owner, _)| (pid, owner))
            .collect()
    }

    #[test]
    fn a_process_is_the_runs_or_another_if_numbers_can_be_compared() {
        let both = [(7, GpuOwner::Run), (9, GpuOwner::Other)];
        assert_eq!(found(&[7, 9], true, 1), both);
        assert_eq!(found(&[7, 9], false, 1), both, "7 shows the namespace");
        assert_eq!(found(&[9], true, 1), [(9, GpuOwner::Other)]);
    }

    #[test]
    fn numbers_of_the_host_say_only_how_many_processes_there_are() {
        assert_eq!(found(&[900], false, 1), [(900, GpuOwner::Unknown)]);
        assert_eq!(
            found(&[900, 901], false, 1),
            [(900, GpuOwner::Unknown), (0, GpuOwner::Other)]
        );
    }
}
