//! `tllmprof demo`: the main job, on the bundled example.

mod call_log;
mod kernels;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tllmprof_config::{VARIABLES, Windows};

use crate::failure::usage;
use crate::profiler::NSYS;
use crate::{library, output};
use call_log::CallLog;

/// What the example's device is called where there is no GPU.
const STAND_IN: &str = "stand-in for CUDA";
/// Kernels in the graph that the example launches once an iteration.
const KERNELS_IN_GRAPH: u64 = 4;

#[derive(clap::Args)]
#[command(after_help = "\
It runs on the GPU if there is one, under nsys if that is found, and else on a stand-in for CUDA
that writes down what it is asked to do. Exit status: 0 if exactly the window was captured.")]
pub struct Arguments {
    /// Iterations of the example
    #[arg(long, value_name = "N", default_value_t = 40)]
    steps: u64,
    /// Windows of iterations
    #[arg(long, value_name = "W", default_value = "5-9")]
    window: String,
}

struct Demo {
    engine: PathBuf,
    steps: u64,
    window: String,
    windows: Windows,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let windows = Windows::parse(&arguments.window)
        .map_err(|problem| usage(problem.in_variable("--window", arguments.window.as_ref())))?;
    let reached = windows
        .as_slice()
        .iter()
        .filter(|w| w.first < arguments.steps)
        .count();
    if reached < windows.as_slice().len() {
        return Err(usage(format_args!(
            "--window=\"{}\": the example ends after iteration {} (wanted: windows that begin \
             before that, or more --steps)",
            arguments.window,
            arguments.steps.saturating_sub(1)
        )));
    }
    library::find()?;
    let demo = Demo {
        engine: find_engine()?,
        steps: arguments.steps,
        window: arguments.window.clone(),
        windows,
    };
    match (demo.device(), NSYS.find()?) {
        (Some(device), _) if device == STAND_IN => demo.on_the_stand_in(None)?,
        (Some(device), Some(_)) => demo.under_nsys(&device)?,
        (Some(device), None) => demo.without_nsys(&device)?,
        (None, _) => demo.on_the_stand_in(Some(find_stand_in(&demo.engine)?))?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Demo {
    /// The device that the example runs on as things are, if it runs at all.
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

    /// The command line that somebody would type, ready to run.
    fn command(&self, options: &[&str]) -> Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["run", "--window", &self.window, "--step", "cudaGraphLaunch"]);
        command.args(options).arg("--").arg(&self.engine);
        command.args(["--steps", &self.steps.to_string()]);
        // What is set here is for other programs than the example.
        for variable in VARIABLES.iter().filter(|v| v.name != "TLLMPROF_LOG") {
            command.env_remove(variable.name);
        }
        Ok(command)
    }

    /// On the stand-in in that folder, or on the one that is found anyway.
    fn on_the_stand_in(&self, folder: Option<PathBuf>) -> Result<()> {
        let scratch = Scratch::new()?;
        let log = scratch.0.join("calls");
        let mut command = self.command(&[])?;
        command.env("STANDIN_LOG", &log);
        if let Some(folder) = folder {
            let rest = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            let paths = [folder].into_iter().chain(env::split_paths(&rest));
            command.env("LD_LIBRARY_PATH", env::join_paths(paths)?);
        }
        show(&command, "on a stand-in for CUDA, as there is no GPU here")?;
        run_to_the_end(&mut command)?;

        let text = fs::read_to_string(&log).context("the stand-in for CUDA wrote no log")?;
        let log = CallLog::parse(&text);
        output::print(format!("\nWhat the stand-in was asked to do:\n{log}").as_bytes())?;
        let wrong = log.differences(&self.windows, self.steps);
        ensure!(
            wrong.is_empty(),
            "not exactly the window: {}",
            wrong.join("; ")
        );
        self.done()
    }

    fn under_nsys(&self, device: &str) -> Result<()> {
        let [window] = self.windows.as_slice() else {
            return Err(usage(format_args!(
                "--window=\"{}\": nsys needs 90 ms between windows, and the example is faster \
                 (wanted: one window)",
                self.window
            )));
        };
        let scratch = Scratch::new()?;
        let report = scratch.0.join("demo");
        // Kernels one by one, where nsys would take each graph as a whole.
        let arguments = format!(
            "--nsys=--trace=cuda,nvtx --cuda-graph-trace=node --output={}",
            shell_words::quote(&report.display().to_string())
        );
        let mut command = self.command(&[&arguments])?;
        show(&command, &format!("on {device}"))?;
        run_to_the_end(&mut command)?;

        let kernels = kernels::count(&NSYS.required()?, &report.with_extension("nsys-rep"))?;
        let last = window.last.unwrap_or(u64::MAX).min(self.steps - 1);
        let wanted = (last - window.first + 1) * KERNELS_IN_GRAPH;
        let line = format!(
            "\nnsys stats counts {kernels} kernels; the window's iterations have {wanted}, all {} \
             have {}\n",
            self.steps,
            self.steps * KERNELS_IN_GRAPH
        );
        output::print(line.as_bytes())?;
        ensure!(kernels == wanted, "not exactly the window");
        self.done()
    }

    /// There is nothing that captures, so the library's own account has to do.
    fn without_nsys(&self, device: &str) -> Result<()> {
        let mut command = self.command(&["--log", "info"])?;
        show(
            &command,
            &format!("on {device}; nsys was not found, so nothing is recorded"),
        )?;
        command.stderr(Stdio::piped());
        let output = command
            .stdin(Stdio::null())
            .stdout(Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        eprint!("{text}");
        check_status(&output)?;
        for window in self.windows.as_slice() {
            let last = window.last.unwrap_or(u64::MAX).min(self.steps - 1);
            let iterations = last - window.first + 1;
            let closed = format!("window {window} closed: {iterations} iteration");
            ensure!(
                text.contains(&closed),
                "not exactly the window: no \"{closed}…\""
            );
        }
        let text = format!(
            "\nThe profiler was on for iterations {} of {}, exactly the window; with nsys they would \
             have been recorded.\n",
            self.windows, self.steps
        );
        Ok(output::print(text.as_bytes())?)
    }

    fn done(&self) -> Result<()> {
        let text = format!(
            "\nCaptured: iterations {} of {}, exactly the window.\n",
            self.windows, self.steps
        );
        Ok(output::print(text.as_bytes())?)
    }
}

fn show(command: &Command, comment: &str) -> Result<()> {
    let mut line = b"$ tllmprof".to_vec();
    for argument in command.get_args() {
        line.push(b' ');
        line.extend(crate::quote::word(argument.as_encoded_bytes()));
    }
    line.extend_from_slice(format!("    # {comment}\n").as_bytes());
    Ok(output::print(&line)?)
}

fn run_to_the_end(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .context("the example did not start")?;
    ensure!(status.success(), "the example ended with {status}");
    Ok(())
}

fn check_status(output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "the example ended with {}",
        output.status
    );
    Ok(())
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
    let candidates = [
        beside
            .parent()
            .unwrap_or(&beside)
            .join("standin/bin/engine"),
        beside.join("engine"),
    ];
    match candidates.iter().find(|candidate| candidate.is_file()) {
        Some(engine) => Ok(engine.clone()),
        None => bail!(
            "the example was not found: TLLMPROF_ENGINE is not set, and there is no {}, no {} \
             (make -C tests/standin builds it)",
            candidates[0].display(),
            candidates[1].display()
        ),
    }
}

/// The folder with the stand-in for CUDA.
fn find_stand_in(engine: &Path) -> Result<PathBuf> {
    let beside = folder_of_this_executable()?;
    // Built together, the example is in the folder's bin/.
    let of_engine = engine.ancestors().nth(2).map(Path::to_owned);
    let built = beside.parent().map(|folder| folder.join("standin"));
    [of_engine, built]
        .into_iter()
        .flatten()
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

/// A folder that goes when the demo ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = env::temp_dir().join(format!("tllmprof-demo-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
