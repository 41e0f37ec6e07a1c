//! Processes that share a GPU. The driver lists them; this module determines which of them belong to the run.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use tllmprof_config::{RunId, variable};
use tllmprof_record::{Event, GpuOwner, NO_STRING, StreamWriter, StringId, What};

use super::family::ProcessFamily;
use super::gpu::MeasuredValues;
use crate::process_status::read_variables;

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
        let mut is_ours = |pid| family.contains(pid) || self.is_task(pid);
        let ours: HashSet<_> = listed
            .iter()
            .map(|(pid, _)| *pid)
            .filter(|pid| is_ours(*pid))
            .collect();
        for (pid, owner, sm) in owners(listed, self.is_host, |pid| ours.contains(&pid)) {
            let name = match owner {
                GpuOwner::Unknown => NO_STRING,
                GpuOwner::Run | GpuOwner::Other => self.name(record, pid)?,
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
            let variables = read_variables(pid.into()).unwrap_or_default();
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
/// on the host. These ids do not identify processes of this PID namespace, so the owners are then unknown. The number
/// of listed processes does not reveal the owners either: some of the run's processes may not use this GPU, and
/// processes of the same job that this command did not start may use it.
fn owners(
    listed: &[ListedProcess],
    is_host: bool,
    is_ours: impl Fn(u32) -> bool,
) -> Vec<(u32, GpuOwner, Option<u8>)> {
    // If the driver lists the process id of any process of the run, the driver uses the ids of this PID namespace.
    let is_known = is_host || listed.iter().any(|(pid, _)| is_ours(*pid));
    let owner = |pid| match is_known {
        true if is_ours(pid) => GpuOwner::Run,
        true => GpuOwner::Other,
        false => GpuOwner::Unknown,
    };
    let all = listed.iter().map(|(pid, sm)| (*pid, owner(*pid), *sm));
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(listed: &[u32], is_host: bool) -> Vec<(u32, GpuOwner)> {
        let listed: Vec<_> = listed.iter().map(|pid| (*pid, Some(1))).collect();
        let owners = owners(&listed, is_host, |pid| pid == 7);
        owners
            .into_iter()
            .map(|(pid, owner, _)| (pid, owner))
            .collect()
    }

    #[test]
    fn a_process_is_the_runs_or_another_if_numbers_can_be_compared() {
        let both = [(7, GpuOwner::Run), (9, GpuOwner::Other)];
        assert_eq!(found(&[7, 9], true), both);
        assert_eq!(found(&[7, 9], false), both, "7 shows the namespace");
        assert_eq!(found(&[9], true), [(9, GpuOwner::Other)]);
    }

    #[test]
    fn owners_are_unknown_if_the_driver_lists_numbers_of_the_host() {
        assert_eq!(found(&[900], false), [(900, GpuOwner::Unknown)]);
        assert_eq!(
            found(&[900, 901], false),
            [(900, GpuOwner::Unknown), (901, GpuOwner::Unknown)]
        );
    }
}
