//! `tllmprof detach`: takes the patches out of a process again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tllmprof_control::{Event, Phase, Request};

use super::{missing, sockets, stop};
use crate::output;

/// How long a process may take to answer.
const ANSWERING: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub struct Arguments {
    /// The process
    #[arg(value_name = "PID")]
    pid: u32,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pid = u64::from(arguments.pid);
    let listening = || match sockets::of(pid) {
        Some(process) if process.status.phase == Phase::Detached => {
            bail!("{pid}: the library is detached already")
        }
        Some(process) => Ok(process),
        None => bail!("{pid}: {}", missing::why(pid)),
    };
    let mut process = listening()?;
    if process.status.phase != Phase::Armed || process.status.first.is_some() {
        stop::stop(vec![process], false);
        process = listening()?;
    }
    process.connection.wait_for(Some(ANSWERING))?;
    process.connection.ask(&Request::Detach)?;
    match process.connection.next()? {
        Event::Refused { why, .. } => bail!("{pid}: {why}"),
        _ => output::say(format_args!(
            "{pid}: detached; the library stays loaded and idle"
        )),
    }
    Ok(ExitCode::SUCCESS)
}
