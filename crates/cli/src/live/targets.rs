//! The options that select processes which listen on a control socket.

use anyhow::{Result, bail};
use clap::Args;

use super::missing;
use super::sockets::{self, ListeningProcess};
use crate::failure::usage;

#[derive(Args, Debug)]
pub(crate) struct Targets {
    /// Process IDs, or HOST:PID if several containers use the same ID [default: the only process or run; for top, all
    /// processes]
    #[arg(value_name = "PID", conflicts_with_all = ["run", "all"])]
    pub processes: Vec<String>,
    /// Select all processes of this run
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    pub run: Option<String>,
    /// Select all processes that tllmprof ps lists
    #[arg(long)]
    pub all: bool,
}

impl Targets {
    /// Returns the selected processes. If the user selected none, returns the only process, or the processes of the
    /// only run.
    ///
    /// # Errors
    /// A named process does not listen on a control socket, or several processes match and it is not clear which are
    /// meant.
    pub(crate) fn find(&self) -> Result<Vec<ListeningProcess>> {
        let mut listening = match self.processes.is_empty() {
            true => sockets::listening(),
            false => sockets::listening_to_named(),
        };
        if self.processes.is_empty() {
            if let Some(run) = &self.run {
                listening.retain(|process| process.status.run.as_ref() == Some(run));
                if listening.is_empty() {
                    bail!(
                        "--run {run}: no process of that run listens (tllmprof ps lists those that do)"
                    );
                }
            } else if listening.is_empty() {
                bail!(
                    "no process listens: one does that was started by tllmprof run, or with TLLMPROF_CONTROL=1, and \
                     uses CUDA"
                );
            } else if !self.all && !are_one_run(&listening) {
                let names: Vec<_> = listening
                    .iter()
                    .map(|process| process.status.pid.to_string())
                    .collect();
                return Err(usage(format_args!(
                    "several processes listen: {} (wanted: their numbers, --run ID or --all)",
                    names.join(", ")
                )));
            }
            return Ok(listening);
        }
        let mut found = Vec::new();
        for named in &self.processes {
            let (host, pid) = match named.rsplit_once(':') {
                Some((host, pid)) => (Some(host), pid),
                None => (None, named.as_str()),
            };
            let Ok(pid) = pid.parse::<u64>() else {
                return Err(usage(format_args!(
                    "{named:?} is no process (wanted: PID or HOST:PID)"
                )));
            };
            let is_it = |process: &ListeningProcess| {
                process.status.pid == pid && host.is_none_or(|host| process.status.host == host)
            };
            let mut places = listening
                .iter()
                .enumerate()
                .filter(|(_, process)| is_it(process));
            let place = places.next().map(|(place, _)| place);
            if places.next().is_some() {
                return Err(usage(format_args!(
                    "{named}: several containers have it (wanted: HOST:PID)"
                )));
            }
            match place {
                Some(place) => found.push(listening.remove(place)),
                None if found.iter().any(is_it) => {
                    return Err(usage(format_args!("{named} is given twice")));
                }
                None if host.is_some() => bail!(
                    "{named}: no process of that host and number listens here (tllmprof ps lists those that do)"
                ),
                None => bail!("{named}: {}", missing::why(pid)),
            }
        }
        Ok(found)
    }
}

fn are_one_run(processes: &[ListeningProcess]) -> bool {
    let run = |process: &ListeningProcess| process.status.run.clone();
    let first = processes.first().map(run);
    processes.len() <= 1
        || first.as_ref().is_some_and(Option::is_some)
            && processes.iter().all(|process| Some(run(process)) == first)
}
