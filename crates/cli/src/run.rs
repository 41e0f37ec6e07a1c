//! `tllmprof run`: runs the program with the library preloaded, usually as a child of this process. The program
//! replaces this process if no child can be started, or if this process has nothing to do during the run or after it.
//! It also replaces this process if a service manager expects notices from this process, unless this process has to
//! watch the run (`--gpu-metrics`, `--when 'stuck > TIME'`).

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Result;
use tllmprof_config::{Level, RunId, Settings, variable};

use crate::background::{self, Left};
use crate::doctor::{NOT_A_PROGRAM, NOT_EXECUTABLE, NOT_FOUND};
use crate::failure::{usage, with_status, worded};
use crate::hang::StuckWatch;
use crate::metrics::{SampleScope, Sampler};
use crate::options::{Measures, Options, split_arguments};
use crate::profiler::{NCU, NSYS, ncu_arguments, nsys_arguments};
use crate::records::{self, Records};
use crate::supervised::HeldSignals;
use crate::unreached::ProgramWatch;
use crate::which::{CommandLookup, which};
use crate::{doctor, inherited, library, live, manners, output, report, runs, supervised};

#[derive(clap::Args)]
#[command(
    before_help = "\
Examples:
  tllmprof run -- python3 serve.py                       # steady iterations
  tllmprof run --window 100-150 --gc --gil -- vllm serve MODEL
  tllmprof run --window 100-150 --step cudaGraphLaunch --nsys -- ./server",
    after_help = "\
The program's exit status or signal becomes that of tllmprof run. 2: an option or a variable is wrong; 126: the program
cannot be executed; 127: there is no such program.

nsys needs about 90 ms between two windows and may miss a window that starts sooner."
)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    options: Options,
    /// Run the program under nsys, which captures the windows, or the whole program with --window none; ARGS are passed
    /// to nsys
    #[arg(long, value_name = "ARGS", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with = "ncu")]
    nsys: Option<OsString>,
    /// Run the program under ncu, which profiles the kernels of the windows; ARGS are passed to ncu
    #[arg(long, value_name = "ARGS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    ncu: Option<OsString>,
    /// Print no summary at the end; tllmprof report can print it later
    #[arg(long)]
    no_summary: bool,
    /// Program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArguments {
    /// Checks the program before it is started. Logs a warning if the program would run without the library.
    ///
    /// # Errors
    /// The program cannot start at all, or cannot start with the library preloaded.
    fn admit(&self, library: &Path, log: Level) -> Result<()> {
        doctor::admit(&self.command, library, log).map_err(|error| {
            let name = self.command.first().map_or(OsStr::new(""), |name| name);
            match self.options.meant(name) {
                Some(meant) if which(name) == CommandLookup::Nothing => {
                    with_status(NOT_FOUND, format_args!("{error} (did you mean {meant}?)"))
                }
                _ => error,
            }
        })
    }

    /// Returns the command that starts the program. If a profiler (nsys or ncu) is to be used, the command starts the
    /// program under this profiler.
    fn to_start(&self, settings: &Settings) -> Result<Command> {
        let (name, rest) = self
            .command
            .split_first()
            .map_or((OsStr::new(""), &[][..]), |(n, r)| (n, r));
        let windows = settings.windows.as_slice().len();
        let mut command = if let Some(theirs) = &self.nsys {
            let mut command = Command::new(NSYS.required()?);
            command
                .args(nsys_arguments(
                    windows,
                    settings.where_split,
                    &split_arguments("--nsys", theirs)?,
                ))
                .arg(name);
            command
        } else if let Some(theirs) = &self.ncu {
            let mut command = Command::new(NCU.required()?);
            command
                .args(ncu_arguments(windows, &split_arguments("--ncu", theirs)?))
                .arg(name);
            command
        } else {
            Command::new(name)
        };
        command.args(rest);
        Ok(command)
    }
}

pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let is_profiled = arguments.nsys.is_some() || arguments.ncu.is_some();
    let measures = measures_beside_profiler(is_profiled);
    let settings = arguments.options.settings(measures)?;
    let has_state = arguments.options.gpu_state()?;
    arguments.options.check_places(&settings)?;
    let mut command = arguments.to_start(&settings)?;
    let library = find_library()?;
    set_variables(&mut command, &library, arguments, &settings, measures);
    arguments.admit(&library, settings.log)?;
    live::sweep();
    let options = &arguments.options;
    let is_recorded = !is_profiled && records::are_wanted(&settings, options.no_trace());
    check_ring(&settings, &command, is_recorded)?;
    let run = settings.run.clone().map_or_else(runs::new_id, Ok)?;
    let task = options.task(&settings);
    // Signals are blocked from this point on. Otherwise a signal could end this process after it has created the run's
    // folder, and leave this folder empty.
    let held = HeldSignals::now();
    let (records, run) = match is_recorded {
        true => records(&command, run, task.as_deref())?,
        false => (None, run),
    };
    // Processes that the program starts inherit this identifier, so they belong to the same run.
    command.env(variable::run, run.as_str());
    if is_recorded {
        set_records(&mut command, records.as_ref(), &settings);
    }
    let stuck = settings.stuck.clone().filter(|_| records.is_some());
    let is_service = inherited::notices_are_expected();
    let stays = options.gpu_metrics() || stuck.is_some();
    if is_service && stays && settings.log >= Level::Warn {
        warn_of_notices();
    }
    if !stays && (is_service || records.is_none()) {
        return Err(run_in_place(&mut command, records, settings.log));
    }
    let sampled = sample_scope(options, has_state, records.as_ref());
    let start = |sampled| start_sampler(records.as_ref(), &settings, &run, sampled);
    let mut sampler = sampled.and_then(start);
    let mut watch = None;
    let mut stuck_watch = None;
    let mut status = supervised::run(&held, &mut command, || {
        if let Some(sampler) = &mut sampler {
            sampler.begin();
        }
        let folder = ring_folder(records.as_ref(), &settings);
        stuck_watch = stuck.and_then(|stuck| StuckWatch::start(stuck, run.clone(), folder));
        // The processes of nsys or ncu load the driver without the library. The watch (the search for processes
        // without the library) would report them, so it is not started for such runs.
        if !is_profiled && settings.log >= Level::Warn {
            watch = ProgramWatch::start(library);
        }
    });
    if let Err(error) = &status
        && inherited::is_shortage(error)
    {
        drop(sampler.take().and_then(Sampler::finish));
        report_shortage(error, records.as_ref(), settings.log);
        status = Err(inherited::exec_instead(&mut command));
    }
    drop(held);
    drop(stuck_watch);
    if let Some(line) = watch.and_then(ProgramWatch::finish) {
        output::say(format_args!("{line}"));
    }
    // Removes control sockets of ended processes. Killed processes of this run may have left some.
    live::sweep();
    let metrics = sampler.and_then(Sampler::finish);
    let metrics = metrics
        .filter(|path| sampled != Some(SampleScope::State) || keep_state(path, records.as_ref()));
    let status = status.map_err(|error| cannot_start(command.get_program(), &error));
    let summarises = !arguments.no_summary && !manners::is_quiet();
    match records {
        Some(records) if status.is_err() => records.finish(),
        Some(records) => end_run(records, metrics, &run, settings.log, summarises),
        None => {}
    }
    status.map(end_as)
}

/// Returns the measurements that the library makes without a request of the user. There are none if a profiler such
/// as nsys runs the program.
const fn measures_beside_profiler(is_profiled: bool) -> Measures {
    match is_profiled {
        true => Measures::Nothing,
        false => Measures::All,
    }
}

/// Checks that a condition on `stuck` (`--when 'stuck > TIME'`) can be evaluated. This requires the ring files of the
/// processes, which contain their latest steps and collectives. Returns an error if the user gave such a condition, but
/// the processes of `command` would write no ring file. They write none if the user chose a path for the records but
/// none for the ring files, or switched off the ring files or the records.
fn check_ring(settings: &Settings, command: &Command, is_recorded: bool) -> Result<()> {
    let is_off = env::var_os(variable::ring).is_some_and(|path| path.is_empty());
    let has_chosen = env::var_os(variable::trace).is_some()
        || command.get_envs().any(|(name, _)| name == variable::trace);
    let lacks_ring = settings.ring.is_none() && (is_off || has_chosen);
    match &settings.stuck {
        Some(stuck) if !is_recorded || lacks_ring => Err(usage(format_args!(
            "--when {stuck}: there would be no ring to watch (wanted: --ring PATH with --trace PATH, and neither --nsys, --ncu \
             nor --no-trace)"
        ))),
        _ => Ok(()),
    }
}

/// Sets the variables that give the processes of `command` the path of their records.
fn set_records(command: &mut Command, records: Option<&Records>, settings: &Settings) {
    let Some(records) = records else {
        // No record can be written; the function `records` has logged the reason. An empty value of the variable
        // switches off the record.
        command.env(variable::trace, "");
        return;
    };
    command.env(variable::trace, &records.variable);
    if settings.stuck.is_some() {
        command.env(variable::watched, "1");
    }
    if let Some(ring) = default_ring(records, settings) {
        command.env(variable::ring, ring);
    }
}

/// Returns the path template of the ring files (latest steps and collectives) in the run's folder. `None` if the user
/// chose another path for them, or if the records are not in the run's folder.
fn default_ring(records: &Records, settings: &Settings) -> Option<OsString> {
    let is_chosen = settings.ring.is_some() || env::var_os(variable::ring).is_some();
    records.ring().filter(|_| !is_chosen)
}

/// Returns the run's folder, if the ring files of its processes are there.
fn ring_folder(records: Option<&Records>, settings: &Settings) -> Option<PathBuf> {
    default_ring(records?, settings)?;
    records?.of_run().map(Path::to_owned)
}

/// Warns that the service manager accepts the program's notices (`sd_notify`) only with `NotifyAccess=all`, because the
/// program is a child of this process.
fn warn_of_notices() {
    output::say(format_args!(
        "NOTIFY_SOCKET is set, and with --gpu-metrics or --when 'stuck > TIME' the program is a child of this process: the \
         service manager takes its notices only with NotifyAccess=all"
    ));
}

/// Replaces this process with the program. Used if a service manager expects notices from this process, or if this
/// process has nothing to do during the run or after it. Returns only if the program cannot be executed. The result is
/// the error.
fn run_in_place(command: &mut Command, records: Option<Records>, log: Level) -> anyhow::Error {
    if records.is_some() && log >= Level::Info {
        let why = "a service manager expects its notices (NOTIFY_SOCKET is set)";
        say_in_place(why, records.as_ref());
    }
    let error = inherited::exec(command);
    if let Some(records) = records {
        records.finish();
    }
    cannot_start(command.get_program(), &error)
}

/// Prints the summary of a run if `summarises` is true. If processes of the run are still running, reports them.
/// Otherwise removes the run's folder if nothing was written to it.
fn end_run(records: Records, metrics: Option<PathBuf>, run: &RunId, log: Level, summarises: bool) {
    let left = background::find(run);
    if summarises {
        summarise(&records, metrics, run, log, left.is_empty());
    }
    if left.is_empty() {
        records.finish();
    } else if log >= Level::Info {
        report_left(&left, &records);
    }
}

/// Returns the path of the library that is preloaded, `libtllmprof.so`.
///
/// # Errors
/// No file was found, or the file that was found is not this library.
fn find_library() -> Result<PathBuf> {
    let library = library::find()?;
    match doctor::unfit(&library) {
        Some(reason) => {
            let path = library.display();
            Err(usage(format_args!(
                "{path}: {reason} (wanted: libtllmprof.so)"
            )))
        }
        None => Ok(library),
    }
}

/// Sets the variables of `command` that load the library and pass the user's options to it.
fn set_variables(
    command: &mut Command,
    library: &Path,
    arguments: &RunArguments,
    settings: &Settings,
    measures: Measures,
) {
    // The variables are set in the environment of `command` even if it is nsys or ncu. nsys and ncu pass them on to the
    // program, and the library does nothing inside nsys and ncu. nsys and ncu also have options that set variables, but
    // these options split values at commas, and a list of windows contains commas.
    command.env(
        "LD_PRELOAD",
        library::preload(library, env::var_os("LD_PRELOAD")),
    );
    output::detail(format_args!("preloads {}", library.display()));
    for given in arguments.options.given(measures) {
        output::detail(format_args!(
            "sets {}={} ({})",
            given.variable,
            given.value.display(),
            given.option
        ));
        command.env(given.variable, given.value);
    }

    // Unless the user has set the variable, it is set to 1: the library then opens a control socket, through which
    // `tllmprof capture` can request windows while the program runs.
    if env::var_os(variable::control).is_none() {
        command.env(variable::control, "1");
    }
    if measures == Measures::Nothing && (settings.trace.is_none() || settings.trace_on_demand) {
        // nsys or ncu records all windows, also those that are requested while the program runs, so the library does
        // not have to write a record. An empty value of the variable switches the record off.
        command.env(variable::trace, "");
    }
}

/// Logs that the program replaces this process because no child process can be started.
fn report_shortage(error: &io::Error, records: Option<&Records>, log: Level) {
    if log >= Level::Info {
        let why = worded(&error.to_string());
        let why = format_args!("another process could not be started: {why}");
        say_in_place(why, records);
    }
}

/// Returns which measurements of the GPUs the sampling process takes while the program runs. `None` if it takes none.
fn sample_scope(
    options: &Options,
    has_state: bool,
    records: Option<&Records>,
) -> Option<SampleScope> {
    match records {
        _ if options.gpu_metrics() => Some(SampleScope::All),
        Some(records) if records.are_of_run() && has_state => Some(SampleScope::State),
        _ => None,
    }
}

/// Starts to sample the GPUs' metrics. The samples are written to the folder of the run's records. Returns `None` if
/// the sampling process cannot be started.
fn start_sampler(
    records: Option<&Records>,
    settings: &Settings,
    run: &RunId,
    sampled: SampleScope,
) -> Option<Sampler> {
    let folder = match (records, &settings.trace) {
        (Some(records), _) => records.folder(),
        (None, Some(trace)) => trace.folder(),
        (None, None) => PathBuf::new(),
    };
    Sampler::start(&folder, run, settings.trace_max, settings.log, sampled)
}

/// Removes the record of the GPUs' state if no process of the program wrote a record. The state is only useful together
/// with the record of a process. Returns true if the state is kept.
fn keep_state(path: &Path, records: Option<&Records>) -> bool {
    let is_alone = records.is_some_and(|records| records.written().is_empty());
    if is_alone {
        let _ = fs::remove_file(path);
    }
    !is_alone
}

/// Reports the reason why the program replaces this process, and the command with which the user can print the summary.
fn say_in_place(why: impl fmt::Display, records: Option<&Records>) {
    let prints = match records {
        Some(records) => format!(" (tllmprof report {} prints it)", quoted(records.place())),
        None => String::new(),
    };
    output::say(format_args!(
        "the program takes the place of this process: {why}. There is no summary at the end{prints}"
    ));
}

/// Reports the processes of the run that have not ended. Some of them write a record, or may yet write one because they
/// use the CUDA driver. Also reports where these records are.
fn report_left(left: &[Left], records: &Records) {
    const SHOWN: usize = 3;
    let shown = left.iter().take(SHOWN);
    let mut shown: Vec<_> = shown
        .map(|left| format!("process {} ({})", left.number, left.name))
        .collect();
    if left.len() > SHOWN {
        shown.push(format!("{} more", left.len() - SHOWN));
    }
    let runs = if left.len() == 1 { "runs" } else { "run" };
    let begun = records.written_by(left.iter().map(|left| left.number));
    let may_write = !begun.is_empty() || left.iter().any(|left| left.uses_driver);
    let place = match &begun[..] {
        [one] if left.len() == 1 => format!(". Its record is {}", one.display()),
        _ if !may_write => String::new(),
        _ if left.len() == 1 => format!(". Its record will be in {}", records.place().display()),
        _ => format!(". Records of them will be in {}", records.place().display()),
    };
    output::say(format_args!(
        "{} of the run still {runs}{place}",
        shown.join(", "),
    ));
}

fn quoted(path: PathBuf) -> String {
    String::from_utf8_lossy(&tllmprof_report::shell_word(path.as_os_str().as_bytes())).into_owned()
}

/// Returns the records of the processes of `command`, and the identifier of their run. There are no records if they
/// would be in the working folder and it cannot be determined, for example because it was deleted.
fn records(command: &Command, run: RunId, task: Option<&str>) -> Result<(Option<Records>, RunId)> {
    let by_option = command
        .get_envs()
        .find_map(|(name, value)| (name == variable::trace).then_some(value).flatten());
    let given = match by_option {
        Some(given) => Some(("--trace", given.to_owned())),
        None => env::var_os(variable::trace).map(|given| (variable::trace, given)),
    };
    let is_absolute = given
        .as_ref()
        .is_some_and(|(_, path)| Path::new(path).is_absolute());
    if let Some(error) = env::current_dir().err().filter(|_| !is_absolute) {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "it was deleted".to_owned(),
            _ => worded(&error.to_string()),
        };
        output::say(format_args!(
            "no record: it would be in the working directory: {why}. Set --trace /PATH to record elsewhere"
        ));
        return Ok((None, run));
    }
    let (records, run) = match given {
        Some((by, given)) => (Records::begin(by, given)?, run),
        None => Records::begin_run(&run, task)?,
    };
    Ok((Some(records), run))
}

/// Prints a summary of a run's records, and the command that writes a page with timelines of them. If the run has ended
/// (`has_ended`) and no record was written, prints a message about the missing record instead.
fn summarise(
    records: &Records,
    metrics: Option<PathBuf>,
    run: &RunId,
    log: Level,
    has_ended: bool,
) {
    let mut written = records.written();
    if !written.is_empty() {
        written.extend(metrics.filter(|path| !written.contains(path)));
        if report::summarise(&written, run) {
            let page = format!("{}.html", runs::folder(run).display());
            let line = ["tllmprof", "report", "--html", &page].map(OsString::from);
            let names = records.names(written).into_iter().map(OsString::from);
            let words = line.into_iter().chain(names);
            let words: Vec<_> = words
                .map(|name| tllmprof_report::shell_word(name.as_bytes()))
                .collect();
            output::note(format_args!(
                "a page with timelines: {}",
                String::from_utf8_lossy(&words.join(&b' '))
            ));
        }
    } else if log >= Level::Info && has_ended && !records.are_unwritable() {
        output::say(format_args!(
            "no record was written to {} (a process writes one once it has the library in it and iterations that can be \
             relied on; tllmprof doctor -- COMMAND says whether the library reaches it)",
            records.folder().display()
        ));
    }
}

/// Ends this process in the same way as the program ended: with its exit status, or by the same signal.
fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        supervised::end_by(signal);
        return ExitCode::from(128 | u8::try_from(signal).unwrap_or(0));
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}

fn cannot_start(name: &OsStr, error: &io::Error) -> anyhow::Error {
    let is_there = matches!(which(name), CommandLookup::Program(_));
    let name = name.display();
    match error.kind() {
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            with_status(NOT_EXECUTABLE, format_args!("{name}: {NOT_A_PROGRAM}"))
        }
        io::ErrorKind::NotFound if is_there => with_status(
            NOT_FOUND,
            format_args!(
                "{name}: the interpreter or the dynamic linker that it names is not there"
            ),
        ),
        io::ErrorKind::NotFound => {
            with_status(NOT_FOUND, format_args!("{name}: there is no such program"))
        }
        io::ErrorKind::PermissionDenied => {
            with_status(NOT_EXECUTABLE, format_args!("{name}: it is not executable"))
        }
        _ => {
            let why = worded(&error.to_string());
            with_status(
                NOT_EXECUTABLE,
                format_args!("{name}: it cannot be executed: {why}"),
            )
        }
    }
}
