//! Processes of a run that go on when its program has ended: servers that go to the background by themselves.

use std::fs;
use std::path::Path;

use tllmprof_config::{RunId, variable};

/// What the kernel calls processes of this command.
const COMMAND: &str = "tllmprof";
/// Ancestors that are looked at: no tree of processes is that deep.
const MAX_DEPTH: usize = 256;

/// A process and its name.
pub struct Left {
    pub number: u32,
    pub name: String,
}

/// The processes that inherited the run's identifier from the program. Those under another `tllmprof run` are of
/// that one, as all tasks of a job are one run. Processes that this user may not look at are left out.
pub fn find(run: &RunId) -> Vec<Left> {
    let variable = format!("{}={run}", variable::run);
    let is_of_run = |number: &u32| {
        let variables = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        let mut entries = variables.split(|byte| *byte == 0);
        entries.any(|entry| entry == variable.as_bytes())
    };
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut left: Vec<_> = numbers
        .filter(|number| *number != std::process::id())
        .filter(is_of_run)
        .filter_map(|number| {
            let (name, mut parent) = name_and_parent(number)?;
            for _ in 0..MAX_DEPTH {
                if parent == std::process::id() {
                    break;
                }
                let Some((name, next)) = name_and_parent(parent) else {
                    break;
                };
                if name == COMMAND {
                    return None;
                }
                parent = next;
            }
            Some(Left { number, name })
        })
        .collect();
    left.sort_by_key(|left| left.number);
    left
}

fn name_and_parent(number: u32) -> Option<(String, u32)> {
    let text = fs::read(Path::new("/proc").join(number.to_string()).join("stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // A name may have parentheses of its own.
    let (head, rest) = text.rsplit_once(") ")?;
    let name = head.split_once('(')?.1;
    let parent = rest.split(' ').nth(1)?.parse().ok()?;
    Some((name.to_owned(), parent))
}
