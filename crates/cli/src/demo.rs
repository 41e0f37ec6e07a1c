//! `tllmprof demo`: captures a window (a range of iterations) of the bundled example program, to show what `tllmprof
//! run` does.

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tllmprof_config::error::shown;
use tllmprof_config::{WindowList, variable, variable_names};
use tllmprof_report::Report;

use crate::failure::usage;
use crate::profiler::NSYS;
use crate::supervised::{self, HeldSignals};
use crate::{library, manners, output, processes};

/// The default window of the demo, as numbers of the first and last iteration.
const WINDOW: &str = "5-9";
/// The device name that the example reports when it runs on the stand-in, a library that imitates CUDA without a GPU.
const STAND_IN: &str = "stand-in for CUDA";
/// Duration of the shortest simulated kernel or copy, in nanoseconds, when the example runs on the stand-in for CUDA.
/// The longest takes five times as long.
const STAND_IN_WORK: &str = "100000";

#[derive(clap::Args)]
#[command(after_help = "\
The example runs on the GPU if there is one, otherwise on a stand-in for CUDA. At the end, the command prints
the report of the captured window.
Exit status: 0 if exactly the window was captured.")]
pub(crate) struct DemoArguments {
    /// Number of iterations that the example runs
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = crate::live::count)]
    steps: u64,
    /// Windows of iterations to capture, as in tllmprof run --window [default: 5-9]
    #[arg(long, value_name = "W")]
    window: Option<String>,
}

struct Demo {
    engine: PathBuf,
    steps: u64,
    window: String,
    windows: WindowList,
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode> {
    let window = arguments.window.as_deref().unwrap_or(WINDOW);
    let typed = shown(window.as_ref());
    let windows = WindowList::parse(window)
        .map_err(|problem| usage(format_args!("--window \"{typed}\": {problem}")))?;
    if windows.is_empty() || windows.is_steady() {
        return Err(usage(format_args!(
            "--window \"{typed}\": the demo compares what was captured with their numbers (wanted: A-B, N, A- \
             or all, or a comma list of them)"
        )));
    }
    let reached = windows
        .as_slice()
        .iter()
        .filter(|w| w.first < arguments.steps)
        .count();
    if reached < windows.as_slice().len() {
        let last = arguments.steps.saturating_sub(1);
        return Err(match arguments.window {
            Some(_) => usage(format_args!(
                "--window \"{typed}\": the example ends after iteration {last} (wanted: windows that begin \
                 before that, or more --steps)"
            )),
            None => usage(format_args!(
                "--steps \"{}\": the example ends after iteration {last}, before window {WINDOW} (wanted: more steps, or \
                 another --window)",
                arguments.steps
            )),
        });
    }
    library::find()?;
    let demo = Demo {
        engine: find_engine()?,
        steps: arguments.steps,
        window: window.to_owned(),
        windows,
    };
    match demo.run() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            if let Some(Interrupted(signal)) = error.downcast_ref() {
                supervised::end_by(*signal);
            }
            Err(error)
        }
    }
}

impl Demo {
    fn run(&self) -> Result<()> {
        let scratch = Scratch::new()?;
        match self.device() {
            Some(device) if device == STAND_IN => self.on_the_stand_in(&scratch, None),
            Some(device) => {
                self.record(&scratch, |_| {}, &format!("on {device}"), "")?;
                if NSYS.find()?.is_none() {
                    return Ok(());
                }
                output::print(b"\nThe same under nsys, which captures the same window:\n\n")?;
                show(&self.command(&["--nsys"])?, &format!("on {device}"))
            }
            None => self.on_the_stand_in(&scratch, Some(find_stand_in(&self.engine)?)),
        }
    }

    /// Returns the name of the device that the example runs on in this environment. `None` if the example does not run.
    fn device(&self) -> Option<String> {
        let mut probe = Command::new(&self.engine);
        probe
            .args(["--steps", "0"])
            .env_remove("LD_PRELOAD")
            .env_remove("STANDIN_LOG");
        let output = probe
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let device = text
            .lines()
            .find_map(|line| line.split_once(" steps/s on "))?
            .1;
        output.status.success().then(|| device.to_owned())
    }

    /// Returns the `tllmprof run` command that captures the window (the range of captured iterations) of the example
    /// program, in the form in which a user would type it. `options` are further options of `run`.
    fn command(&self, options: &[&str]) -> Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["run", "--window", &self.window, "--step", "cudaGraphLaunch"]);
        command.args(options).arg("--").arg(&self.engine);
        command.args(["--steps", &self.steps.to_string()]);
        // Variables of tllmprof in this environment are meant for other programs, and would change the demo.
        for name in variable_names().filter(|name| *name != variable::log) {
            command.env_remove(name);
        }
        Ok(command)
    }

    /// Runs the example on the stand-in for CUDA, a library that imitates CUDA without a GPU. `folder` is the
    /// stand-in's folder. If it is `None`, the loader finds the stand-in by itself.
    fn on_the_stand_in(&self, scratch: &Scratch, folder: Option<PathBuf>) -> Result<()> {
        let paths = folder.map(|folder| {
            let rest = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            env::join_paths([folder].into_iter().chain(env::split_paths(&rest)))
        });
        let paths = paths.transpose()?;
        let set = |command: &mut Command| {
            command.env("STANDIN_WORK_NS", STAND_IN_WORK);
            command.envs(paths.map(|paths| ("LD_LIBRARY_PATH", paths)));
        };
        let times = " (times of the stand-in, not of a GPU: nothing is computed, a kernel or copy takes 0.1 to 0.5 ms)";
        self.record(
            scratch,
            set,
            "on a stand-in for CUDA, as there is no GPU here",
            times,
        )
    }

    /// Runs the example, records its windows (ranges of captured iterations), and prints the report of the record.
    /// Fails if the record does not contain exactly the wanted windows.
    fn record(
        &self,
        scratch: &Scratch,
        set: impl FnOnce(&mut Command),
        place: &str,
        times: &str,
    ) -> Result<()> {
        let record = scratch.path("demo.tllmprof");
        let mut command =
            self.command(&["--no-summary", "--trace", &record.display().to_string()])?;
        set(&mut command);
        show(&command, place)?;
        scratch.run(&mut command)?;

        let process = processes::read(&record).context("the record of the window")?;
        let found = process.windows.iter().flat_map(|window| &window.iterations);
        let found: Vec<_> = found.map(|iteration| iteration.n).collect();
        let wanted = (0..self.steps).filter(|n| self.windows.contains(*n));
        ensure!(
            wanted.eq(found.iter().copied()),
            "not exactly the window: iterations {found:?} are in the record"
        );
        let text = format!(
            "\nCaptured: iterations {} of {}, exactly the window.\n\nWhat the built-in record of them \
             shows{times}:\n\n{}",
            self.windows,
            self.steps,
            Report::new(vec![process]).styled(manners::stdout())
        );
        Ok(output::text(&text)?)
    }
}

fn show(command: &Command, comment: &str) -> Result<()> {
    let mut line = b"$ tllmprof".to_vec();
    for argument in command.get_args() {
        line.push(b' ');
        line.extend(tllmprof_report::shell_word(argument.as_encoded_bytes()));
    }
    line.extend_from_slice(format!("    # {comment}\n").as_bytes());
    Ok(output::print(&line)?)
}

fn find_engine() -> Result<PathBuf> {
    if let Some(given) = env::var_os("TLLMPROF_ENGINE").filter(|path| !path.is_empty()) {
        let given = PathBuf::from(given);
        if given.is_file() {
            return Ok(std::path::absolute(given)?);
        }
        return Err(usage(format_args!(
            "TLLMPROF_ENGINE=\"{}\": there is no such file (wanted: the path of the example)",
            given.display()
        )));
    }
    let beside = folder_of_this_executable()?;
    let packaged =
        library::PACKAGED.map(|folder| library::tidy(&beside.join(folder)).join("demo/engine"));
    let built = beside
        .parent()
        .unwrap_or(&beside)
        .join("standin/bin/engine");
    let candidates = [&[built, beside.join("engine")][..], &packaged].concat();
    match candidates.iter().find(|candidate| candidate.is_file()) {
        Some(engine) => Ok(engine.clone()),
        None => bail!(
            "the example was not found: TLLMPROF_ENGINE is not set, and there is no {} \
             (packages have it, and make -C tests/standin builds it)",
            candidates
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(", no ")
        ),
    }
}

/// Returns the folder that contains the stand-in for CUDA, a library that imitates CUDA without a GPU.
fn find_stand_in(engine: &Path) -> Result<PathBuf> {
    let beside = folder_of_this_executable()?;
    // In a package, the stand-in for CUDA lies in the example's folder. In a build, it lies one folder above the
    // example, because the example is in `bin/`.
    let of_engine = engine.ancestors().skip(1).take(2).map(Path::to_owned);
    let built = beside.parent().map(|folder| folder.join("standin"));
    of_engine
        .chain(built)
        .find(|folder| folder.join("libcuda.so.1").is_file())
        .context(
            "there is no GPU that the example runs on, and the stand-in for CUDA was not found \
             (make -C tests/standin builds it)",
        )
}

fn folder_of_this_executable() -> Result<PathBuf> {
    Ok(env::current_exe()?
        .parent()
        .unwrap_or(Path::new("/"))
        .to_owned())
}

/// The error for a child process that a signal such as SIGINT ended. The signal was meant for the whole demo, so the
/// demo ends with the same signal.
#[derive(Debug)]
struct Interrupted(i32);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// The temporary folder of the demo. Dropping this value removes the folder.
struct Scratch {
    folder: PathBuf,
    // Fields are dropped after `Scratch::drop` has removed the folder, so signals stay blocked until then.
    held: HeldSignals,
}

impl Scratch {
    fn new() -> Result<Self> {
        let folder = env::temp_dir().join(format!("tllmprof-demo-{}", std::process::id()));
        let held = HeldSignals::now();
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder, held })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs the example program `command` and waits until it ends.
    fn run(&self, command: &mut Command) -> Result<()> {
        command.stdin(Stdio::null());
        let status =
            supervised::run_while(&self.held, command).context("the example did not start")?;
        if let Some(signal @ (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)) =
            status.signal()
        {
            return Err(Interrupted(signal).into());
        }
        ensure!(status.success(), "the example ended with {status}");
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
