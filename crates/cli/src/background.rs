//! Processes of a run that continue after its program has ended, such as servers that daemonize.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;

use tllmprof_config::{RunId, variable};

use crate::driver_user::has_driver;
use crate::live::process_numbers;
use crate::process_status::{ProcessStatus, read_variables};

/// The name that the kernel reports for processes of this command (the `comm` field).
pub(crate) const COMMAND: &str = "tllmprof";
/// Name of the child process in which the command samples the GPUs.
pub(crate) const GPU_SAMPLER: &CStr = c"gpu-sampler";
/// Maximum number of ancestors of a process that are followed, to find out if another `tllmprof` command started the
/// process. The limit ends the search if the process tree contains a loop.
const MAX_DEPTH: usize = 256;
/// Maximum number of times that a search reads the list of all processes without a new process of the run in it. Only a
/// machine on which processes start and end all the time needs more than a few.
const MAX_QUIET_LISTS: usize = 100;
/// Maximum number of times that a search reads the list of all processes.
const MAX_LISTS: usize = 2000;

/// A process that belongs to a run and still runs after the run's program has ended.
pub(crate) struct Left {
    pub number: u64,
    pub name: String,
    /// True if the process has loaded the CUDA driver, so that it may yet write a record.
    pub uses_driver: bool,
}

/// Finds the running processes that inherited the run's identifier from the program. Processes that another `tllmprof
/// run` command started are left out, because that command reports them: commands of the same job can have the same
/// run identifier. Processes whose environment variables this user may not read are left out too.
///
/// A process that moves to the background starts a child and ends. If this happens after the list of all processes was
/// read, the list lacks the child, and the listed parent is gone. So if nothing is found and a listed process has ended
/// meanwhile or was starting a program, the list is read again.
///
/// The kernel lists processes by their numbers. If numbers begin again at the lowest one, the child's number may be below
/// those that have been listed when it starts, and its parent may end before its own number is reached. Then the list
/// lacks both, and no listed process has ended. So nothing must be found in two lists in a row.
pub(crate) fn find(run: &RunId) -> Vec<Left> {
    let mut known = BTreeSet::new();
    let mut quiet_lists = 0;
    let mut is_second = false;
    for _ in 0..MAX_LISTS {
        let all = process_numbers().collect::<BTreeSet<_>>();
        let mut have_ended = false;
        let (mut of_run, mut starting) = (Vec::new(), Vec::new());
        for number in all.difference(&known).copied() {
            match is_of_run(number, run) {
                Some(true) => of_run.push(number),
                Some(false) => {}
                None => {
                    have_ended = true;
                    starting.extend(Some(number).filter(|number| starts_program(*number)));
                }
            }
        }
        let left = among(&of_run);
        have_ended |= of_run.iter().copied().any(has_ended);
        quiet_lists += usize::from(of_run.is_empty());
        let is_sure = !have_ended && is_second;
        if is_sure || !left.is_empty() || quiet_lists == MAX_QUIET_LISTS {
            return left;
        }
        is_second = !have_ended;
        known = all;
        for number in starting {
            known.remove(&number);
        }
    }
    Vec::new()
}

/// Returns true if a process without variables is starting a program, and so will have variables in a moment. A process
/// that has ended and a thread of the kernel have no memory, and a program that was started without variables has an
/// empty place for them.
fn starts_program(number: u64) -> bool {
    let (memory, variables, end_of_variables) = (23, 50, 51);
    ProcessStatus::read(number).is_some_and(|status| {
        let field = |field| status.field::<u64>(field).unwrap_or(0);
        let has_none = field(end_of_variables) != 0 && field(variables) == field(end_of_variables);
        field(memory) > 0 && !has_none
    })
}

/// Returns true if a process has inherited the run's identifier. Returns `None` if the process has no environment
/// variables, for example because it has ended, is starting a program, or is a kernel thread.
fn is_of_run(number: u64, run: &RunId) -> Option<bool> {
    let variables = match read_variables(number) {
        Ok(variables) => variables,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return (!has_ended(number)).then_some(false);
        }
        Err(_) => return None,
    };
    let variable = format!("{}={run}", variable::run);
    let mut entries = variables.split(|byte| *byte == 0);
    let is_of_run = entries.any(|entry| entry == variable.as_bytes());
    (!variables.is_empty()).then_some(is_of_run)
}

/// Returns true if a process has ended, even if its parent has not reaped it yet.
fn has_ended(number: u64) -> bool {
    ProcessStatus::read(number).is_none_or(|status| status.has_ended())
}

/// Returns the processes in `numbers` that belong to the run of this command (see [`find`]).
fn among(numbers: &[u64]) -> Vec<Left> {
    let own = u64::from(std::process::id());
    let numbers = numbers.iter().copied().filter(|number| *number != own);
    numbers
        .filter_map(|number| {
            let status = ProcessStatus::read(number).filter(|status| !status.has_ended())?;
            let mut parent = status.parent()?;
            for _ in 0..MAX_DEPTH {
                if parent == own {
                    break;
                }
                let above = ProcessStatus::read(parent);
                let Some((next, above)) = above.and_then(|above| Some((above.parent()?, above)))
                else {
                    break;
                };
                if above.name == COMMAND {
                    return None;
                }
                parent = next;
            }
            Some(Left {
                number,
                name: status.name,
                uses_driver: has_driver(number),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn an_ended_process_that_is_not_reaped_has_no_variables_and_does_not_run() {
        let run = RunId::parse("left").unwrap();
        let mut command = Command::new("true");
        let mut child = command.env(variable::run, "left").spawn().unwrap();
        let number = u64::from(child.id());
        // With `NOWAIT` the child stays unreaped.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(Pid::from_child(&child)), options);
        assert!(ended.unwrap().is_some());
        assert_eq!(is_of_run(number, &run), None);
        assert!(has_ended(number) && among(&[number]).is_empty());
        child.wait().unwrap();
    }

    #[test]
    fn a_variable_after_many_others_is_found() {
        let run = RunId::parse("left").unwrap();
        let mut command = Command::new("cat");
        command.env_clear().stdin(Stdio::piped());
        // `Command` passes the variables in the order of their names.
        command.envs((0..3).map(|n| (format!("A{n}"), "x".repeat(60_000))));
        let mut child = command.env(variable::run, "left").spawn().unwrap();
        let number = u64::from(child.id());
        while is_of_run(number, &run).is_none() {
            std::thread::yield_now();
        }
        let other = RunId::parse("other").unwrap();
        let answers = (is_of_run(number, &run), is_of_run(number, &other));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(answers, (Some(true), Some(false)));
    }
}
