//! `tllmprof stop`: closes the windows (captured ranges of iterations) that are open in running processes.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tllmprof_control::{Closed, ControlEvent, Request};

use super::sockets::ListeningProcess;
use super::targets::Targets;
use crate::failure::worded;
use crate::output;

/// Time that a process has to close its window. The process first waits for the end of the current iteration, but only
/// for a few seconds, and then until the GPU is idle.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(crate) struct StopArguments {
    #[command(flatten)]
    targets: Targets,
}

pub(crate) fn run(arguments: &StopArguments) -> Result<ExitCode> {
    let is_one = arguments.targets.processes.len() == 1;
    Ok(match stop(arguments.targets.find()?, is_one) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Closes the open windows (captured ranges of iterations) of these processes, and logs the results. Returns true if
/// all windows were closed. If `is_needed` is true, a process without an open window counts as a failure.
pub(crate) fn stop(mut processes: Vec<ListeningProcess>, is_needed: bool) -> bool {
    let mut failed = false;
    // All processes get the stop request before the first answer is read, so that the windows close at nearly the same
    // time.
    for process in &mut processes {
        let _ = process.connection.ask(&Request::Stop);
        let _ = process.connection.wait_for(Some(CLOSE_TIMEOUT));
    }
    for mut process in processes {
        let pid = process.status.pid;
        match process.connection.next() {
            Ok(ControlEvent::Closed(Closed {
                steps: Some((first, last)),
                ..
            })) => {
                output::say(format_args!(
                    "{pid}: the window closed with iterations {first}-{last}"
                ));
            }
            Ok(ControlEvent::Closed(_)) => output::say(format_args!(
                "{pid}: the window closed without an iteration"
            )),
            Ok(ControlEvent::Refused { why, .. }) => {
                output::say(format_args!("{pid}: {why}"));
                failed |= is_needed;
            }
            Ok(_) => failed = true,
            Err(error) => {
                output::say(format_args!(
                    "{pid}: the window is still open: {}",
                    worded(&error.to_string())
                ));
                failed = true;
            }
        }
    }
    !failed
}
