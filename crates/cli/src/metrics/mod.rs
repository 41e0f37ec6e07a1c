//! GPU metrics: the activity of whole GPUs while the program runs. The metrics are sampled with NVML into a separate
//! record.
//!
//! A child process of the command does the sampling. Sampling does not run on a thread of the command, so that the
//! program keeps running if NVML hangs or crashes. The sampling process ends when the command closes its end of a
//! socket: after the program has ended, or because the command itself has ended.

mod clock;
mod family;
mod file;
mod gpu;
mod nodes;
mod sampling;
mod shares;
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

use crate::background::GPU_SAMPLER;
use crate::supervised::HeldSignals;
use crate::{inherited, output, witness};

/// Time to wait for the last message of the sampling process, which may still be loading NVML.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for the last message of the sampling process in a run without `--gpu-metrics`.
const STATE_FINISH_TIMEOUT: Duration = Duration::from_millis(500);

/// The measurements that the sampling process takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleScope {
    /// Clocks, power, energy and processes of the GPUs, and the NUMA nodes of threads. Nothing is logged.
    State,
    /// The measurements of [`State`](Self::State), and also the load of the GPUs (`--gpu-metrics`).
    All,
}

/// The settings of the process that samples the GPUs.
struct SamplingPlan {
    path: PathBuf,
    /// The process id of the command that started the sampling process.
    pid: u32,
    run: RunId,
    log: Level,
    /// Maximum size of the record, in bytes.
    limit: u64,
    sampled: SampleScope,
}

/// The sampling process, from the point of view of the command that started it.
pub(crate) struct Sampler {
    number: libc::pid_t,
    orders: UnixStream,
    path: PathBuf,
    log: Level,
    finish_timeout: Duration,
}

impl Sampler {
    /// Starts a process that samples GPUs after [`Sampler::begin`] is called. The samples go into a record in
    /// `folder` of at most `limit` bytes. GPUs and metrics that cannot be sampled are logged and left out. Returns
    /// `None` if the process cannot be started. Requires that the calling process has a single thread.
    pub(crate) fn start(
        folder: &Path,
        run: &RunId,
        limit: u64,
        log: Level,
        sampled: SampleScope,
    ) -> Option<Self> {
        let (log, finish_timeout) = match sampled {
            SampleScope::All => (log, FINISH_TIMEOUT),
            SampleScope::State => (Level::Off, STATE_FINISH_TIMEOUT),
        };
        let pid = std::process::id();
        let path = file::path(folder, pid);
        let plan = SamplingPlan {
            path: path.clone(),
            pid,
            run: run.clone(),
            log,
            limit,
            sampled,
        };
        match fork(plan) {
            Ok((number, orders)) => Some(Self {
                number,
                orders,
                path,
                log,
                finish_timeout,
            }),
            Err(error) => {
                say(log, &error);
                None
            }
        }
    }

    /// Lets the sampling process begin to sample. Called when the program has started.
    pub(crate) fn begin(&mut self) {
        // A failed write means that the sampling process has ended. The program then runs without samples.
        let _ = self.orders.write_all(&[0]);
    }

    /// Ends the sampling. Returns the path of the record, or `None` if no samples were taken.
    pub(crate) fn finish(mut self) -> Option<PathBuf> {
        let mut said = String::new();
        let answered = self
            .orders
            .shutdown(Shutdown::Write)
            .and_then(|()| self.orders.set_read_timeout(Some(self.finish_timeout)))
            .and_then(|()| self.orders.read_to_string(&mut said));
        // SAFETY: as long as the child has not been waited for, its process id is not used again. `supervised::run`
        // waits for any child; if it has already waited for this one, the first `waitpid` fails. The second `waitpid`
        // does not block, because a killed child that hangs in the driver may not end for a long time.
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
        // If sampling ended with an error, the record still contains the samples from before the error, so its path is
        // returned.
        self.path.is_file().then_some(self.path)
    }
}

/// Forks the sampling process. Returns its process id, and the command's end of the socket between the two processes.
fn fork(plan: SamplingPlan) -> Result<(libc::pid_t, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    // The child keeps all signals blocked. Signals of the terminal are meant for the program, and the child has to
    // outlive the program.
    let _held = HeldSignals::now();
    // SAFETY: the process has one thread, so no other thread can leave anything half done in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(ours);
            // A panic must not unwind into the code that follows the fork in the parent.
            let _ = catch_unwind(AssertUnwindSafe(|| in_child(&plan, theirs)));
            // SAFETY: this ends the process without running any of the parent's clean-up.
            unsafe { libc::_exit(0) }
        }
        number => {
            drop(theirs);
            // Waits until the child has given itself a name of its own and writes a byte. If the child has ended
            // instead, a later write to the socket fails.
            let _ = (&ours).read_exact(&mut [0]);
            Ok((number, ours))
        }
    }
}

fn in_child(plan: &SamplingPlan, mut orders: UnixStream) {
    // Users may send signals to all processes that are called `tllmprof`. These signals are meant for the command, so
    // the sampling process takes another name.
    // SAFETY: the call reads only the name.
    unsafe { libc::prctl(libc::PR_SET_NAME, GPU_SAMPLER.as_ptr()) };
    witness::forget_arguments();
    if orders.write_all(&[0]).is_err() {
        return;
    }
    inherited::release();
    // The sampling process must not keep the program's standard output open, and NVML must not write to it.
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    match sampling::sample(plan, &mut orders) {
        // A write error is ignored: it means that the command has ended, so no process would read the number.
        Ok(rounds) => drop(writeln!(orders, "{rounds}")),
        Err(error) => say(plan.log, &error),
    }
}

/// Logs why there are no GPU metrics, or why the metrics end early.
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
