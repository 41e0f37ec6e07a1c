//! GPU metrics: what the GPUs as a whole do while the program runs, sampled by NVML into a record of
//! their own.
//!
//! The sampling process is a child of the command, not a thread of it: whatever becomes of NVML, the
//! program runs on, and it is neither the program's child nor in its way. It ends when its end of a
//! socket is closed, be it that the program ended or the command.

mod clock;
mod file;
mod gpu;
mod sampling;
mod visible;

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tllmprof_config::{Level, RunId};

use crate::supervised::Held;
use crate::{inherited, output};

/// How long the last words of the sampling process are waited for. It may still be loading NVML.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the sampling process is to do.
struct Plan {
    path: PathBuf,
    /// The number of the command's process.
    pid: u32,
    run: RunId,
    log: Level,
    /// The largest size of the record, in bytes.
    limit: u64,
}

/// The sampling process.
pub struct Sampler {
    number: libc::pid_t,
    orders: UnixStream,
    path: PathBuf,
    log: Level,
}

impl Sampler {
    /// Begins to sample, with a record in `folder` of at most `limit` bytes. What cannot be sampled is
    /// logged and left out. For a process with one thread.
    pub fn start(folder: &Path, run: &RunId, limit: u64, log: Level) -> Option<Self> {
        let pid = std::process::id();
        let path = file::path(folder, pid);
        let plan = Plan {
            path: path.clone(),
            pid,
            run: run.clone(),
            log,
            limit,
        };
        match fork(plan) {
            Ok((number, orders)) => Some(Self {
                number,
                orders,
                path,
                log,
            }),
            Err(error) => {
                say(log, &error);
                None
            }
        }
    }

    /// Ends the sampling; where the record is, if it holds anything.
    pub fn finish(mut self) -> Option<PathBuf> {
        let mut said = String::new();
        let answered = self
            .orders
            .shutdown(Shutdown::Write)
            .and_then(|()| self.orders.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| self.orders.read_to_string(&mut said));
        // SAFETY: a child that has not been waited for has its number still; if it has been, with the orphans, the first
        // call fails. One that hangs in the driver is left to it.
        unsafe {
            let status = std::ptr::null_mut();
            if libc::waitpid(self.number, status, libc::WNOHANG) == 0 && answered.is_err() {
                libc::kill(self.number, libc::SIGKILL);
                libc::waitpid(self.number, status, libc::WNOHANG);
            }
        }
        let rounds: Option<u64> = said.trim_end().parse().ok();
        match rounds {
            Some(0) if self.log >= Level::Warn => output::say(format_args!(
                "no GPU metrics: the program ended before the first sample"
            )),
            Some(1..) if self.log >= Level::Info => {
                output::say(format_args!("GPU metrics: {}", self.path.display()))
            }
            None if answered.is_err() && self.log >= Level::Warn => {
                output::say(format_args!("GPU metrics end here: NVML does not answer"))
            }
            _ => (),
        }
        // What was sampled until it went wrong is there, too.
        self.path.is_file().then_some(self.path)
    }
}

/// The sampling process, and the socket whose other end it has.
fn fork(plan: Plan) -> Result<(libc::pid_t, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    // The terminal's signals are for the program; this child ends after it.
    let _held = Held::now();
    // SAFETY: the process has one thread, so that nothing in the child is half done.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(ours);
            // A panic must not come back to what the parent does.
            let _ = catch_unwind(AssertUnwindSafe(|| in_child(&plan, theirs)));
            // SAFETY: ends this process, with nothing of the parent's to be done.
            unsafe { libc::_exit(0) }
        }
        number => Ok((number, ours)),
    }
}

fn in_child(plan: &Plan, mut orders: UnixStream) {
    inherited::release();
    // The program's output is not for us to hold open, or for NVML to write to.
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    match sampling::sample(plan, &mut orders) {
        // If the command is gone, nobody reads this.
        Ok(rounds) => drop(writeln!(orders, "{rounds}")),
        Err(error) => say(plan.log, &error),
    }
}

/// Says why there are no metrics, or no more.
fn say(log: Level, error: &anyhow::Error) {
    if log >= Level::Warn {
        let text = format!("{error:#}");
        if text.starts_with("GPU metrics") {
            output::say(format_args!("{text}"));
        } else {
            output::say(format_args!("no GPU metrics: {text}"));
        }
    }
}
