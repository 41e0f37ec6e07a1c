//! `tllmprof capture`: captures the next steps of running processes. Processes in lockstep, which make the same steps
//! at the same time, are captured in the same steps.
//!
//! [`begin`] opens windows (ranges of captured iterations), [`follow`] waits for them, [`read`] reads them from the
//! records.

mod begin;
mod follow;
mod read;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result};
use tllmprof_config::{Condition, TracePath, time};
use tllmprof_control::{Capture, Request, STEPS, Status};
use tllmprof_export::Output;
use tllmprof_report::{Process as Read, Report};

use super::sockets::ListeningProcess;
use super::targets::Targets;
use super::{count, count_or_none};
use crate::failure::{self, usage, worded};
use crate::manners;
use crate::output;
use crate::page::{self, Measured};
use crate::processes::ReadOptions;
pub(crate) use read::CapturedWindows;

/// Default time from the start of one capture to the start of the next, with `--repeat`.
const EVERY: Duration = Duration::from_secs(60);
/// Default time after which a capture gives up because no iteration begins. `tllmprof attach --steps` also waits this
/// long until the processes listen on their control sockets.
pub(crate) const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// Time that a process has to close a window (a range of captured iterations) after it was asked to.
const CLOSING: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
#[command(after_help = "\
Processes that run in lockstep, such as the ranks of one engine, are captured in the same iterations. A process that does \
not, such as an idle replica, is captured in iterations of its own. ^C closes the windows early; the processes continue.

  tllmprof capture                  the next 50 iterations of the only process or run here
  tllmprof capture 4711 --steps 200 --html page.html
  tllmprof capture --all --for 10s -o captures/
  tllmprof capture --repeat 10 --every 1m -o captures/
  tllmprof capture --profiler       for a profiler that waits, such as nsys profile -c cudaProfilerApi")]
pub(crate) struct CaptureArguments {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    wanted: CaptureRequest,
    /// Number of captures to make, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    repeat: u64,
    /// With --repeat: time from the start of one capture to the start of the next [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    every: Option<Duration>,
    /// Write an HTML page with timelines of all captures
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Replace OUT if it exists
    #[arg(long, requires = "html")]
    force: bool,
}

/// The part of the command line that defines a capture.
#[derive(clap::Args, Default)]
pub(crate) struct CaptureRequest {
    /// Number of iterations to capture [default: 50, or with --for as many as run in that time]
    #[arg(long, value_name = "N", value_parser = count)]
    steps: Option<u64>,
    /// Number of iterations to skip before the capture begins
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count_or_none)]
    delay: u64,
    /// Duration of the capture, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Count only iterations whose batch satisfies EXPR, as with tllmprof run --where
    #[arg(long = "where", value_name = "EXPR")]
    condition: Option<String>,
    /// Record GPU kernels in the first 20 or N iterations; the process must have been started with --kernels
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "20", value_parser = count_or_none)]
    kernels: Option<u64>,
    /// Refuse processes that do not record garbage collections
    #[arg(long)]
    gc: bool,
    /// Refuse processes that do not record the use of the GIL
    #[arg(long)]
    gil: bool,
    /// Refuse processes that do not sample stacks
    #[arg(long)]
    stacks: bool,
    /// Open the window for a profiler that waits in the process for cudaProfilerStart, and write no record; refuse if
    /// no profiler waits
    #[arg(long)]
    profiler: bool,
    /// Run the PyTorch profiler in the window and write its trace to PATH, with -rank-R and -window-K before the
    /// extension; if the process runs in a container, PATH is a path in that container
    #[arg(long, value_name = "PATH", conflicts_with = "kernels", value_parser = trace_path)]
    torch_trace: Option<String>,
    /// Include the iterations before the window, which a process keeps if it was started with --flight
    #[arg(long)]
    past: bool,
    /// Wait this long for an open window to close, and give up if no iteration begins for this time [default: give up
    /// after 60s, and refuse if a window is open]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Copy the records into this folder, one file for each process and capture; the folder is created if it does not
    /// exist
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Parses the path of `--torch-trace`, to which the captured process writes the trace of the PyTorch profiler. The path
/// is made absolute, because that process may have another working folder.
fn trace_path(text: &str) -> Result<String, String> {
    TracePath::parse(text).map_err(|problem| problem.to_string())?;
    let path = std::path::absolute(text).map_err(|error| worded(&error.to_string()))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Parses a time, such as `10s`, that must be longer than 0.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    let time = time::parse(text).filter(|time| !time.is_zero());
    time.ok_or("wanted: a time such as 10s, 500ms or 2m")
}

pub(crate) fn run(arguments: &CaptureArguments) -> Result<ExitCode> {
    if let Some(text) = &arguments.wanted.condition
        && let Err(problem) = Condition::parse(text)
    {
        return Err(usage(format_args!("--where {text:?}: {problem}")));
    }
    if arguments.every.is_some() && arguments.repeat == 1 {
        return Err(usage(
            "--every: there is only one capture (wanted: --repeat N as well)",
        ));
    }
    if arguments.html.as_deref() == Some(Path::new("-")) {
        return Err(usage(
            "--html -: the report goes to standard output (wanted: a file's name)",
        ));
    }
    let _made = arguments.wanted.output.as_deref().map(folder).transpose()?;
    let page = match &arguments.html {
        Some(out) => {
            let target = Output::new(out, arguments.force);
            Some((out, target.with_context(|| out.display().to_string())?))
        }
        None => None,
    };
    let interrupts = interrupts()?;
    let mut windows = CapturedWindows::default();
    let mut failed = false;
    for turn in 1..=arguments.repeat {
        let since = Instant::now();
        if arguments.repeat > 1 {
            let of = arguments.repeat;
            output::note(format_args!("capture {turn} of {of}"));
        }
        match capture(arguments, &interrupts, &mut windows) {
            Ok(succeeded) => failed |= !succeeded,
            Err(error) if turn == 1 => return Err(error),
            // A later capture may succeed, so the error of this capture is only logged.
            Err(error) => {
                output::say(format_args!("{}", failure::text(&error)));
                failed = true;
            }
        }
        let until = since + arguments.every.unwrap_or(EVERY);
        if turn == arguments.repeat || !wait(until, &interrupts) {
            break;
        }
    }
    if let Some((out, target)) = page
        && !windows.is_empty()
    {
        let out = out.display();
        let read = windows.read()?;
        let measured = Measured::from_processes(&read);
        page::write(
            &Report::new(read),
            &measured,
            Some(target),
            true,
            ReadOptions::default(),
        )
        .with_context(|| out.to_string())?;
        output::say(format_args!("the page is {out}"));
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The folder of `-o`, if this command created it. When this value is dropped, the folder is removed if it is still
/// empty.
struct CreatedFolder<'a>(&'a Path);

impl Drop for CreatedFolder<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0);
    }
}

/// Creates the folder of `-o` before anything is captured. The parent of the folder must exist, because otherwise the
/// name may be mistyped. Returns `None` if the folder exists already.
fn folder(path: &Path) -> Result<Option<CreatedFolder<'_>>> {
    let error = match fs::create_dir(path) {
        Ok(()) => return Ok(Some(CreatedFolder(path))),
        Err(_) if path.is_dir() => return Ok(None),
        Err(error) => error,
    };
    let shown = path.display();
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    let there = parent.display();
    Err(if path.exists() {
        usage(format_args!(
            "-o {shown}: that is a file (wanted: a folder for the copies of the records)"
        ))
    } else if !parent.is_dir() {
        usage(format_args!("-o {shown}: there is no folder {there}"))
    } else if error.kind() == io::ErrorKind::NotFound {
        usage(format_args!(
            "-o {shown}: the folder cannot be made: the file system at {there} permits none"
        ))
    } else {
        usage(format_args!(
            "-o {shown}: the folder cannot be made: {}",
            worded(&error.to_string())
        ))
    })
}

/// Captures windows (ranges of iterations) once and prints the report. Returns true if every process has captured a
/// window, and all windows could be read.
fn capture(
    arguments: &CaptureArguments,
    interrupts: &AtomicUsize,
    windows: &mut CapturedWindows,
) -> Result<bool> {
    let (read, succeeded) = take(
        arguments.targets.find()?,
        &arguments.wanted,
        interrupts,
        windows,
    )?;
    if !read.is_empty() {
        output::print(Report::new(read).styled(manners::stdout()).as_bytes())?;
    }
    Ok(succeeded)
}

/// Captures a window (a range of iterations) in each of these processes. Returns the captured part of each process's
/// record, and true if every process has captured a window that could be read. With `--profiler` or `--torch-trace`, a
/// process need not write a record.
///
/// # Errors
/// A process refuses, the processes cannot agree on an iteration, a window does not close in time, or the user
/// interrupts twice. After one interrupt, the windows are closed early, and what they contain is returned.
pub(crate) fn take(
    processes: Vec<ListeningProcess>,
    wanted: &CaptureRequest,
    interrupts: &AtomicUsize,
    windows: &mut CapturedWindows,
) -> Result<(Vec<Read>, bool)> {
    let begun = begin::begin(processes, wanted)?;
    let (captured, failed) = follow::follow(begun.members, wanted, interrupts)?;
    let (read, unread) = read::read(&captured, wanted, windows);
    Ok((read, !(begun.failed || failed || unread)))
}

/// Sleeps until the time `until`. Returns false if the user interrupted the command.
fn wait(until: Instant, interrupts: &AtomicUsize) -> bool {
    loop {
        if interrupts.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Returns a counter of the interrupts (SIGINT or SIGTERM) that the user sends from now on.
pub(crate) fn interrupts() -> Result<Arc<AtomicUsize>> {
    let count = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let count = Arc::clone(&count);
        let act = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        // SAFETY: the handler only makes an atomic addition.
        unsafe { signal_hook::low_level::register(signal, act)? };
    }
    Ok(count)
}

impl CaptureRequest {
    /// Returns the options for a capture of `steps` steps with the time limit `wait` (`--wait`). All other options have
    /// their defaults.
    pub(crate) fn from_steps(steps: u64, wait: Option<Duration>) -> Self {
        Self {
            steps: Some(steps),
            wait,
            ..Self::default()
        }
    }

    /// Returns these options, changed so that GPU kernels are recorded in the given number of iterations.
    pub(crate) fn with_kernels(self, kernels: Option<u64>) -> Self {
        Self { kernels, ..self }
    }

    /// Returns the time after which the capture gives up if no iteration has begun.
    fn patience(&self) -> Duration {
        self.wait.unwrap_or(GIVE_UP_AFTER)
    }

    fn request(&self, first: Option<u64>) -> Request {
        Request::Capture(Capture {
            steps: self
                .steps
                .or_else(|| self.duration.is_none().then_some(STEPS)),
            duration: self.duration,
            first,
            delay: first
                .is_none()
                .then_some(self.delay)
                .filter(|delay| *delay > 0),
            condition: self.condition.clone(),
            kernels: self.kernels,
            gc: self.gc,
            gil: self.gil,
            stacks: self.stacks,
            profiler: self.profiler,
            past: self.past,
            torch_trace: self.torch_trace.clone(),
        })
    }
}

/// Returns the name of a process for messages: its process id, and its rank if that is known.
fn name(status: &Status) -> String {
    match status.rank {
        Some(rank) => format!("{} (rank {rank})", status.pid),
        None => status.pid.to_string(),
    }
}

/// Returns the message about a process that ended before its window (a range of captured iterations) closed.
fn ended(status: &Status) -> String {
    let name = name(status);
    format!("{name}: the process ended before its window closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_takes_some_time() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["0s", "0.000ms", "10", "-1s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
