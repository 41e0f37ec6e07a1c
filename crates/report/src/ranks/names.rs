//! Names of processes that distinguish each process of a report from the others.

use std::collections::HashSet;

use crate::ranks::Rank;

/// Returns a name for each process: its rank if all ranks are different, else its process ID. A single process is named
/// by its rank only if the rank is known. If the processes do not belong to one job, the name of the program is added.
pub(crate) fn names(processes: &[Rank<'_>]) -> Vec<String> {
    let is_alone = processes.len() == 1;
    let is_known = |one: &Rank<'_>| !is_alone || one.facts.known_rank().is_some();
    let is_ranked = have_own_ranks(processes) && processes.iter().all(is_known);
    let is_one_job = is_one_job(processes);
    let name = |process: &Rank<'_>| match (is_ranked, is_one_job) {
        (true, _) => format!("rank {}", process.facts.rank),
        (false, true) => format!("pid {}", process.pid),
        (false, false) => {
            let program = program(&process.facts.command);
            format!("pid {} ({program})", process.pid)
        }
    };
    processes.iter().map(name).collect()
}

/// Returns true if the processes may belong to one job. One of four conditions is enough: their ranks are all
/// different, the rank of each process is known, they have the same run ID, or they have the same command.
pub(crate) fn is_one_job(processes: &[Rank<'_>]) -> bool {
    let runs: HashSet<_> = processes.iter().map(|one| &one.facts.run).collect();
    let commands: HashSet<_> = processes.iter().map(|one| &one.facts.command).collect();
    let have_one_run = runs.len() == 1 && runs.iter().all(|run| !run.is_empty());
    let are_named = processes.iter().all(|one| one.facts.known_rank().is_some());
    have_own_ranks(processes) || are_named || have_one_run || commands.len() <= 1
}

fn have_own_ranks(processes: &[Rank<'_>]) -> bool {
    let ranks: HashSet<_> = processes.iter().map(|process| process.facts.rank).collect();
    ranks.len() == processes.len()
}

/// Returns the name of the program in a command line, without its folder. If a Python interpreter runs a script,
/// returns the name of the script.
pub(crate) fn program(command: &str) -> &str {
    let mut words = command.split_whitespace().map(file_name);
    let first = words.next().unwrap_or_default();
    let script = words.next().filter(|word| word.ends_with(".py"));
    script
        .filter(|_| first.starts_with("python"))
        .unwrap_or(first)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_its_file_or_its_script() {
        for (command, name) in [
            (
                "/opt/venv/bin/python3 /srv/hf_generate.py 400",
                "hf_generate.py",
            ),
            ("python3 -m vllm.entrypoints", "python3"),
            ("./engine --steps 80 --prefill", "engine"),
            ("engine server.py", "engine"),
            ("VLLM::EngineCore", "VLLM::EngineCore"),
            ("", ""),
        ] {
            assert_eq!(program(command), name, "{command}");
        }
    }
}
