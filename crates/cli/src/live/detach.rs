//! `tllmprof detach`: detaches the library from running processes that it was attached to. The library removes its
//! hooks, stays loaded, and does nothing.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tllmprof_attach::Turn;
use tllmprof_control::{Answer, ControlEvent, Phase, Request};

use super::sockets::{self, ListeningProcess};
use super::{attach, each, engine, missing, pid, stop};
use crate::beyond;
use crate::{library, output};

/// Time that a process has to answer a request on its control socket.
const ANSWERING: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct DetachArguments {
    /// Process IDs; with --engine, those of the processes that started the engine
    #[arg(value_name = "PID", required_unless_present = "engine", value_parser = pid)]
    processes: Vec<u32>,
    /// Detach from all processes of the only engine on this machine, or among PID and its descendants, that have the
    /// library
    #[arg(long)]
    engine: bool,
}

pub(crate) fn run(arguments: &DetachArguments) -> Result<ExitCode> {
    let named: Vec<_> = arguments
        .processes
        .iter()
        .map(|pid| u64::from(*pid))
        .collect();
    let all = match arguments.engine {
        true => attached(&named)?,
        false => named,
    };
    let detached = each(&all, detach)?;
    Ok(match detached.len() < all.len() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Returns those processes of the only engine from which the library can be detached. With `tops`, only these processes
/// and their descendants count. The result also has processes that do not listen on a control socket yet, because none
/// of their CUDA calls was intercepted.
fn attached(tops: &[u64]) -> Result<Vec<u64>> {
    let here = sockets::all_here();
    let knows = |pid: u64| here.iter().any(|process| process.status.pid == pid);
    let unused = beyond::numbers().filter(|pid| !knows(*pid) && missing::was_attached(*pid));
    let listening = here
        .iter()
        .filter(|process| process.status.phase != Phase::Detached)
        .map(|process| process.status.pid);
    let all: Vec<_> = listening.chain(unused).collect();
    let all = engine::among(&all, tops)?;
    if all.is_empty() {
        bail!(
            "--engine: the library is attached to none of its processes (tllmprof ps lists those that it is attached to)"
        );
    }
    Ok(all)
}

/// Returns the process in `found`, which listens on a control socket.
///
/// # Errors
/// No process was found, or the library is detached from the process already.
fn listening(pid: u64, found: Option<ListeningProcess>) -> Result<ListeningProcess> {
    match found {
        Some(process) if process.status.phase == Phase::Detached => {
            bail!("{pid}: the library is detached already")
        }
        Some(process) => Ok(process),
        None => bail!("{pid}: {}", missing::why(pid)),
    }
}

fn detach(pid: u64) -> Result<()> {
    let mut process = match sockets::find(pid) {
        None if missing::was_attached(pid) => return detach_unused(pid),
        found => listening(pid, found)?,
    };
    if process.status.phase != Phase::Armed || process.status.first.is_some() {
        stop::stop(vec![process], false);
        process = listening(pid, sockets::find(pid))?;
    }
    process.connection.wait_for(Some(ANSWERING))?;
    process.connection.ask(&Request::Detach)?;
    match process.connection.next()? {
        ControlEvent::Refused { why, .. } => bail!("{pid}: {why}"),
        _ => output::say(format_args!(
            "{pid}: detached; the library stays loaded and idle"
        )),
    }
    Ok(())
}

/// Detaches the library from a process that does not listen on a control socket, because none of its CUDA calls was
/// intercepted. To do so, stops a thread of the process and makes it call the library's entry function with the request
/// `detach`. `tllmprof attach` calls the same function.
fn detach_unused(pid: u64) -> Result<()> {
    // `pid` is the id of an existing process, so it fits into 31 bits.
    let number = i32::try_from(pid)?;
    let _turn = match Turn::take(number) {
        Ok(turn) => turn,
        Err(refusal) => bail!("{pid}: {refusal}"),
    };
    let (answer, stopped) = attach::enter(number, &library::find()?, &["detach".to_owned()])?;
    match answer {
        Answer::Done => output::say(format_args!(
            "{pid}: detached; the library stays loaded and idle; {stopped}"
        )),
        Answer::Preloaded => {
            bail!("{pid}: the library was preloaded when it started, and not attached")
        }
        Answer::DoneBefore => bail!("{pid}: the library is detached already"),
        _ => bail!(
            "{pid}: it cannot be detached now: a window is open, or a thread holds Python's GIL for long: try again"
        ),
    }
    Ok(())
}
