//! `tllmprof attach`: loads the library into a running process that was started without it.

use std::collections::HashSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{self, Path};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tllmprof_attach::{Attached, Hooked, Library, Turn};
use tllmprof_config::error::{BadValue, shown};
use tllmprof_config::{Settings, Step, variable};
use tllmprof_control::{Answer, ControlEvent, Phase, Request};
use tllmprof_report::{Report, Time};

use super::capture::{self, CapturedWindows};
use super::sockets::{self, ListeningProcess};
use super::{count, each, engine, inside, pid};
use crate::failure::usage;
use crate::options::{Given, Options};
use crate::records::Records;
use crate::{doctor, library, manners, output};

/// The forms of `--step` that can be used in a process that is already running. Messages contain this list.
const STEP: &str = "auto, a CUDA call, sym:REGEX, or py:MODULE:QUALNAME";

/// Maximum time to wait until a process opens its control socket after the library was attached. With `--steps`, the
/// time of `--wait` applies instead until the first process has opened its socket. A process opens the socket at its
/// first CUDA call that is intercepted.
const LISTENING: Duration = Duration::from_secs(5);
/// Maximum time to wait until a process answers a request on its control socket.
const ANSWERING: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
#[command(after_help = "\
Attaching stops one thread of the process for about a millisecond, then all threads together for some milliseconds. The \
process must belong to this user, and the system must permit ptrace (kernel.yama.ptrace_scope). docs/attach.md describes \
what can be measured in a running process, and what cannot.

  tllmprof attach 4711 --steps 50     the next 50 iterations
  tllmprof attach 4711                only attach; run tllmprof capture 4711 later
  tllmprof attach --engine            the processes of the only engine here that use its GPUs
  tllmprof detach 4711")]
pub(crate) struct AttachArguments {
    /// Process IDs; with --engine, those of the processes that started the engine
    #[arg(value_name = "PID", required_unless_present = "engine", value_parser = pid)]
    processes: Vec<u32>,
    /// Find the processes of an engine that use the GPUs, on this machine or among PID and its descendants
    #[arg(long)]
    engine: bool,
    /// Capture the next N iterations of each process at once, and print the report
    #[arg(long, value_name = "N", value_parser = count)]
    steps: Option<u64>,
    /// With --steps: give up if no CUDA call is seen and no iteration begins for this time [default: 60s]
    #[arg(long, value_name = "TIME", requires = "steps", value_parser = capture::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    options: Options<true>,
}

pub(crate) fn run(arguments: &AttachArguments) -> Result<ExitCode> {
    let variables = variables(arguments)?;
    let library = library::find()?;
    let all = processes(arguments)?;
    if all.len() > 1
        && let Some(trace) = arguments.options.value("--trace")
        && !trace.to_string_lossy().contains("%p")
    {
        return Err(usage(format_args!(
            "--trace {}: several processes would write it (wanted: a path with %p in it, the number of the process)",
            trace.display()
        )));
    }
    let attached = each(&all, |pid| attach_one(pid, arguments, &library, &variables))?;
    let mut failed = attached.len() < all.len();
    let patience = match arguments.steps {
        Some(_) => arguments.wait.unwrap_or(capture::GIVE_UP_AFTER),
        None => LISTENING,
    };
    let interrupts = capture::interrupts()?;
    let (listening, silent) = await_processes(attached, patience, &interrupts);
    for pid in silent {
        match is_there(pid) {
            false => {
                output::say(format_args!("{pid}: the process has ended meanwhile"));
                failed = true;
            }
            true => {
                output::say(format_args!(
                    "{pid}: none of its CUDA calls has been seen yet: it listens from the first one on (docs/attach.md says \
                     which are seen)"
                ));
                // With `--engine`, a process that does not listen on a control socket is not a failure, because not
                // every process of the engine drives a GPU.
                failed |= arguments.steps.is_some() && !arguments.engine;
            }
        }
    }
    if let Some(steps) = arguments.steps {
        let wanted = capture::CaptureRequest::from_steps(steps, arguments.wait);
        failed |= listening.is_empty() || !take(listening, &wanted, &interrupts)?;
    }
    Ok(match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Returns the processes that the command line selects, each once.
fn processes(arguments: &AttachArguments) -> Result<Vec<u32>> {
    let named = &arguments.processes;
    if !arguments.engine {
        let mut seen = HashSet::new();
        return match named.iter().find(|pid| !seen.insert(**pid)) {
            Some(pid) => Err(usage(format_args!("{pid} is given twice"))),
            None => Ok(named.clone()),
        };
    }
    let tops: Vec<_> = named.iter().map(|pid| u64::from(*pid)).collect();
    let drivers = engine::find(&tops)?;
    let shown: Vec<_> = drivers.iter().map(ToString::to_string).collect();
    output::say(format_args!("--engine: {}", shown.join(", ")));
    let pids = drivers.iter().map(|driver| u32::try_from(driver.pid));
    Ok(pids.filter_map(Result::ok).collect())
}

/// Attaches the library to a process. If the library was attached and detached before, attaches it again.
fn attach_one(
    pid: u32,
    arguments: &AttachArguments,
    library: &Path,
    variables: &[String],
) -> Result<()> {
    let number = i32::try_from(pid)
        .map_err(|_| usage(format_args!("{pid}: no process has such a number")))?;
    let _turn = match Turn::take(number) {
        Ok(turn) => turn,
        Err(refusal) => bail!("{pid}: {refusal}"),
    };
    match sockets::find(pid.into()) {
        Some(process) if process.status.phase == Phase::Detached => {
            attach_again(process, arguments, library)
        }
        Some(_) if arguments.engine => Ok(()),
        Some(_) => bail!(
            "{pid}: the library is in it and listens already (tllmprof capture {pid} captures its iterations)"
        ),
        None => {
            let mut variables = variables.to_vec();
            let trace = arguments.options.value("--trace").map(Path::new);
            inside::adapt(pid.into(), trace, &mut variables)?;
            if let Some(trace) = trace {
                // If the process cannot create its record, the library never tries again. So the path is checked before
                // the library is loaded.
                Records::check_for_process("--trace", trace.into(), pid)
                    .map_err(|error| anyhow!("{pid}: {error}"))?;
            }
            attach(number, arguments, library, &variables)
        }
    }
}

/// Returns the variables that are passed to the library. A library that was attached uses these variables instead of
/// the process's environment.
fn variables(arguments: &AttachArguments) -> Result<Vec<String>> {
    let control = env::var("TLLMPROF_CONTROL").ok();
    let control = control.filter(|folder| folder.starts_with('/'));
    let mut variables = vec![
        format!("TLLMPROF_CONTROL={}", control.as_deref().unwrap_or("1")),
        "TLLMPROF_START_STOP=none".to_owned(),
        // The process's standard error is read by people who did not ask for messages of tllmprof, so by default only
        // warnings are logged.
        format!(
            "TLLMPROF_LOG={}",
            if manners::is_verbose() {
                "debug"
            } else {
                "warn"
            }
        ),
    ];
    for Given {
        option,
        variable,
        value,
    } in arguments.options.typed()
    {
        let value = match variable {
            variable::trace => path::absolute(&value)?.into_os_string(),
            _ => value,
        };
        let Some(value) = value.to_str() else {
            let value = shown(&value);
            return Err(usage(format_args!(
                "{option} \"{value}\": it is not UTF-8 (wanted: plain text)"
            )));
        };
        if variable == variable::step && value.starts_with("nvtx:") {
            return Err(usage(format_args!(
                "{option} \"{}\": ranges are seen from the start of a process alone (wanted: {STEP})",
                shown(OsStr::new(value))
            )));
        }
        variables.push(format!("{variable}={value}"));
    }
    let get = |name: &str| -> Option<OsString> {
        let mut all = variables.iter();
        all.find_map(|variable| {
            variable
                .strip_prefix(name)?
                .strip_prefix('=')
                .map(Into::into)
        })
    };
    match Settings::from_env(get) {
        Ok(_) => Ok(variables),
        Err(bad) => Err(usage(in_option(&arguments.options, &bad))),
    }
}

/// Returns the text of a variable's error. If an option set the variable, the text names that option instead.
fn in_option(options: &Options<true>, bad: &BadValue) -> String {
    let Some(given) = options.typed().find(|given| given.variable == bad.name) else {
        return bad.to_string();
    };
    let wanted = match bad.wanted == Step::WANTED {
        true => STEP,
        false => &bad.wanted,
    };
    let (option, typed, problem) = (given.option, shown(&given.value), &bad.problem);
    format!("{option} \"{typed}\": {problem} (wanted: {wanted})")
}

/// Returns an option on the command line that works only if the process contains a CPython. `None` if there is none.
fn asks_python(options: &Options<true>) -> Option<&'static str> {
    let step = options.value("--step").map(OsStr::as_encoded_bytes);
    if step.is_some_and(|step| step.starts_with(b"py:")) {
        return Some("--step py:");
    }
    let of_python = ["--gc", "--gil", "--stacks"];
    of_python.into_iter().find(|option| options.has(option))
}

/// Makes a thread of the process load the library, and passes the variables to the library. Returns the library's
/// answer, and a text that states how many threads were stopped to load the library, and for how long.
pub(super) fn enter(pid: i32, library: &Path, variables: &[String]) -> Result<(Answer, String)> {
    let wanted = Library {
        path: library,
        glibc: doctor::required_glibc(library),
        variables,
    };
    let Attached {
        stopped,
        tries,
        answer,
    } = match tllmprof_attach::attach(pid, wanted) {
        Ok(attached) => attached,
        Err(refusal) => bail!("{pid}: {refusal}"),
    };
    let stopped = Time(u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX));
    let s = if tries == 1 { "" } else { "s" };
    Ok((
        Answer::from_number(answer),
        format!("{tries} thread{s} stopped, for {stopped} at most"),
    ))
}

fn attach(
    pid: i32,
    arguments: &AttachArguments,
    library: &Path,
    variables: &[String],
) -> Result<()> {
    let (answer, stopped) = enter(pid, library, variables)?;
    match answer {
        Answer::Done | Answer::PythonWaits | Answer::NoPython => {
            output::say(format_args!("{pid}: attached; {stopped}"));
        }
        Answer::DoneBefore => {}
        Answer::AttachedAgain => output::say(format_args!("{pid}: attached again; {stopped}")),
        Answer::Preloaded => bail!(
            "{pid}: the library was preloaded when it started: restart it with TLLMPROF_CONTROL=1"
        ),
        Answer::BadVariable => bail!(
            "{pid}: the library does not know these variables: it is of another version than this command"
        ),
        Answer::Failed => bail!(
            "{pid}: the library could not start; its log is the standard error of the process"
        ),
    }
    let options = &arguments.options;
    match (answer, asks_python(options), options.first()) {
        (Answer::PythonWaits, ..) => output::say(format_args!(
            "{pid}: a thread holds Python's GIL for long; Python's functions and events are seen once it lets go"
        )),
        (Answer::NoPython, Some(option), _) => output::say(format_args!(
            "{pid}: {option}: nothing is recorded for it: no CPython from 3.8 on with a GIL was found in the process"
        )),
        (Answer::AttachedAgain | Answer::DoneBefore, _, Some(option)) => {
            output::say(format_args!("{pid}: {option}: {KEEPS}"));
        }
        _ => {}
    }
    let hooked = hook_driver(pid, library);
    // With `--steps` the capture waits for the first CUDA call. So it is no error that the library has seen no call
    // yet.
    if hooked == 0 && answer == Answer::DoneBefore && arguments.steps.is_none() {
        bail!(
            "{pid}: the library is attached already, and none of its CUDA calls has been seen yet (docs/attach.md says \
             which are)"
        );
    }
    Ok(())
}

/// Patches those driver functions whose calls do not reach the library yet, and logs how many were patched. Returns
/// how many times all threads of the process were stopped for the patches.
fn hook_driver(pid: i32, library: &Path) -> u32 {
    let hooked = match tllmprof_attach::write_jumps(pid, library) {
        Ok(hooked) => hooked,
        Err(why) => {
            output::say(format_args!(
                "{pid}: calls through pointers that it got before are not seen: {why}"
            ));
            return 0;
        }
    };
    let Hooked {
        known,
        seen,
        rounds,
        stopped,
        why,
    } = hooked;
    if rounds == 0 && seen == 0 && known > 0 {
        output::say(format_args!(
            "{pid}: calls through pointers that it got before are not seen: none of the driver's {known} functions could be given \
             a jump"
        ));
    } else if rounds > 0 || why.is_some() {
        let stopped = Time(u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX));
        let s = if rounds == 1 { "" } else { "s" };
        let why = why.map_or(String::new(), |why| {
            let left = known.saturating_sub(seen);
            format!(" ({why}: calls of the other {left} through pointers that it got before are not seen; attach it again to try again)")
        });
        output::say(format_args!(
            "{pid}: {seen} of {known} functions of the driver are hooked{why}; all threads were stopped {rounds} time{s}, \
             for {stopped} at most"
        ));
    }
    rounds
}

const KEEPS: &str = "the library keeps what it was first attached with (wanted: only --steps)";

/// Attaches the library again to a process that it was detached from.
fn attach_again(
    mut process: ListeningProcess,
    arguments: &AttachArguments,
    library: &Path,
) -> Result<()> {
    let pid = process.status.pid;
    if let Some(option) = arguments.options.first() {
        return Err(usage(format_args!("{pid}: {option}: {KEEPS}")));
    }
    process.connection.wait_for(Some(ANSWERING))?;
    process.connection.ask(&Request::Attach)?;
    if let ControlEvent::Refused { why, .. } = process.connection.next()? {
        bail!("{pid}: {why}");
    }
    let stopped = match i32::try_from(pid) {
        Ok(pid) => hook_driver(pid, library),
        Err(_) => 0,
    };
    output::say(format_args!(
        "{pid}: attached again{}",
        if stopped == 0 {
            "; no thread was stopped"
        } else {
            ""
        }
    ));
    Ok(())
}

fn is_there(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(tllmprof_attach::is_there)
}

/// Waits up to `patience` until the processes listen on their control sockets. Returns the processes that listen, and
/// the ids of those that do not. Once one process listens, the wait for further processes ends after at most
/// [`LISTENING`], because the processes of one engine begin to listen within this time. The wait also ends if all
/// processes that do not listen have ended, or if a signal interrupts the command.
fn await_processes(
    pids: Vec<u32>,
    patience: Duration,
    interrupts: &AtomicUsize,
) -> (Vec<ListeningProcess>, Vec<u32>) {
    let mut deadline = Instant::now() + patience;
    let (mut listening, mut silent) = (Vec::new(), pids);
    loop {
        let before = listening.len();
        silent.retain(|pid| {
            let found = sockets::find((*pid).into());
            let is_silent = found.is_none();
            listening.extend(found);
            is_silent
        });
        let now = Instant::now();
        if listening.len() > before {
            deadline = deadline.min(now + LISTENING);
        }
        let may_come = silent.iter().any(|pid| is_there(*pid));
        if !may_come || now > deadline || interrupts.load(Ordering::Relaxed) > 0 {
            return (listening, silent);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Captures the next iterations of `processes`, and prints their report. Returns true if all processes were captured
/// completely.
fn take(
    processes: Vec<ListeningProcess>,
    wanted: &capture::CaptureRequest,
    interrupts: &AtomicUsize,
) -> Result<bool> {
    let mut windows = CapturedWindows::default();
    let (read, succeeded) = capture::take(processes, wanted, interrupts, &mut windows)?;
    if !read.is_empty() {
        output::print(Report::new(read).styled(manners::stdout()).as_bytes())?;
    }
    Ok(succeeded)
}
