//! Processes of a run that continue after its program has ended, such as servers that daemonize.

use std::fs;

use tllmprof_config::{RunId, variable};

use crate::live::process_numbers;
use crate::process_status::ProcessStatus;

/// The kernel's name for processes of this command.
pub const COMMAND: &str = "tllmprof";
/// Largest number of ancestors that are checked, as a bound for damaged process trees.
const MAX_DEPTH: usize = 256;

/// A process and its name.
pub struct Left {
    pub number: u64,
    pub name: String,
}

/// The processes that inherited the run's identifier from the program. Processes below another `tllmprof run` belong
/// to that command, because all tasks of a job share one run. Processes that this user may not read are left out.
pub fn find(run: &RunId) -> Vec<Left> {
    let variable = format!("{}={run}", variable::run);
    let is_of_run = |number: &u64| {
        let variables = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        let mut entries = variables.split(|byte| *byte == 0);
        entries.any(|entry| entry == variable.as_bytes())
    };
    let own = u64::from(std::process::id());
    let mut left: Vec<_> = process_numbers()
        .filter(|number| *number != own)
        .filter(is_of_run)
        .filter_map(|number| {
            let status = ProcessStatus::read(number)?;
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
            })
        })
        .collect();
    left.sort_by_key(|left| left.number);
    left
}
