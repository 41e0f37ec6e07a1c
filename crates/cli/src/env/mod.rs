//! `tllmprof env`: the variables, written the way a launcher takes them.

mod files;
mod words;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use tllmprof_config::{Level, Settings, variable, variable_names};

use crate::failure::usage;
use crate::options::{self, Given, Options};
use crate::which::{Found, which};
use crate::{doctor, library, output, runs};

#[derive(clap::Args)]
#[command(after_help = "\
Variables that are set here are written too, as launchers often drop them.

  eval \"$(tllmprof env --window 100-150)\"         # for all that this shell starts from then on
  eval \"$(tllmprof env --unset)\"                  # and back
  eval docker run \"$(tllmprof env --window 100-150 --format docker)\" IMAGE
  eval mpirun -n 8 \"$(tllmprof env --window 100-150 --format mpirun)\" ./server
  eval srun -N 2 \"$(tllmprof env --window 100-150 --format slurm)\" ./server
  eval torchrun --nproc-per-node 8 \"$(tllmprof env --window 100-150 --format torchrun)\" python3 serve.py
  ray job submit --runtime-env-json \"$(tllmprof env --window 100-150 --format ray)\" -- python3 serve.py
  tllmprof env --window 100-150 --format compose --name SERVICE > tllmprof.yaml
  tllmprof env --window 100-150 --format systemd > tllmprof.conf
  tllmprof env --window 100-150 --format k8s --name CONTAINER > tllmprof-patch.yaml")]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Who reads the variables
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
    /// The container (k8s) or service (compose) that gets the library; no other does
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// For k8s: the image that brings the library, as your registry names it
    #[arg(long, value_name = "IMAGE", default_value = concat!("tllmprof:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Print the lines that remove the library and its variables from this shell
    #[arg(long, exclusive = true)]
    unset: bool,
    /// A program on this machine that will get the variables: fail if it would not start with the library
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// Lines for a POSIX shell
    Shell,
    /// Arguments of docker run and podman run
    Docker,
    /// A second file for docker compose
    Compose,
    /// A strategic-merge patch for kubectl patch
    K8s,
    /// Arguments of Open MPI's mpirun
    Mpirun,
    /// Arguments of srun, right before the program
    Slurm,
    /// Arguments of torchrun, right before the program
    Torchrun,
    /// A runtime environment of Ray, as JSON
    Ray,
    /// A drop-in file for a systemd unit
    Systemd,
}

type Variables = Vec<(&'static str, OsString)>;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.unset {
        output::print(&words::unset(&own_preload(), &set_here()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = arguments.options.settings()?;
    if arguments.options.gpu_metrics() && settings.log >= Level::Warn {
        output::say(format_args!(
            "--gpu-metrics: there is no variable for it, as tllmprof run takes them outside the program"
        ));
    }
    let library = arguments.library()?;
    if let Some(name) = arguments.command.first() {
        if which(name) == Found::Nothing {
            let name = name.display();
            return Err(usage(format_args!("{name}: there is no such program")));
        }
        doctor::admit(&arguments.command, &library, settings.log)?;
    } else if arguments.format == Format::Shell {
        // Programs of this machine get it, and no line of the shell would work after this one.
        doctor::admit(&["/bin/sh".into()], &library, Level::Off)?;
    }
    let variables = arguments.variables(&settings)?;
    output::print(&arguments.text(&library, &variables)?)?;
    if arguments.format == Format::Shell && settings.log >= Level::Warn {
        output::say(format_args!(
            "env: a shell that evaluates these lines preloads the library into every program that it starts \
             (to remove it: eval \"$(tllmprof env --unset)\")"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

impl Arguments {
    fn text(&self, library: &Path, variables: &Variables) -> Result<Vec<u8>> {
        let preload = || library::preload(library, env::var_os("LD_PRELOAD"));
        Ok(match self.format {
            Format::Shell => words::shell(library, variables),
            Format::Docker => words::docker(library, variables),
            Format::Mpirun => words::mpirun(&preload(), variables),
            // Its own lists of variables are split at commas.
            Format::Slurm => words::by_env("--export=ALL", &preload(), variables),
            Format::Torchrun => words::by_env("--no-python", &preload(), variables),
            Format::Ray => files::ray(&preload(), variables)?,
            Format::Systemd => files::systemd(library, variables)?,
            Format::Compose => files::compose(self.receiver("service")?, library, variables)?,
            Format::K8s => files::k8s(self.receiver("container")?, &self.image, variables)?,
        })
    }

    /// The library on this machine, where it is used from here.
    fn library(&self) -> Result<PathBuf> {
        if self.format == Format::K8s && self.command.is_empty() {
            return Ok(PathBuf::new());
        }
        library::find()
    }

    fn receiver(&self, what: &str) -> Result<&str> {
        let name = self.name.as_deref().filter(|name| !name.is_empty());
        name.ok_or_else(|| {
            let format = self.format.to_possible_value();
            let format = format.as_ref().map_or("", |value| value.get_name());
            usage(format_args!(
                "--format {format}: which {what}? (wanted: --name {})",
                what.to_uppercase()
            ))
        })
    }

    /// The variables of the options and of this environment, in the order of the table, with what every process of
    /// the run has in common.
    fn variables(&self, settings: &Settings) -> Result<Variables> {
        let mut given = self.options.given();
        let is_given = |name: &str, given: &[Given]| {
            env::var_os(name).is_some_and(|value| !value.is_empty())
                || given.iter().any(|given| given.variable == name)
        };
        if !is_given(variable::run, &given) {
            // Launchers do not pass on what names their job.
            let run = settings.run.clone().map_or_else(runs::new_id, Ok)?;
            given.push(Given {
                option: "--run",
                variable: variable::run,
                value: run.as_str().into(),
            });
        }
        if let Some(records) = self.records()
            && !is_given(variable::trace, &given)
        {
            given.push(Given {
                option: "--trace",
                variable: variable::trace,
                value: format!("{records}/%h-%r-%p.tllmprof").into(),
            });
        }
        Ok(variables(&given))
    }

    /// The folder for records that the format brings along.
    const fn records(&self) -> Option<&'static str> {
        match self.format {
            Format::K8s | Format::Compose => Some(files::RECORDS),
            Format::Systemd => Some(files::LOGS),
            _ => None,
        }
    }
}

/// The variables of the options and of this environment, in the order of the table.
fn variables(given: &[Given]) -> Variables {
    variable_names()
        // The rank differs in every process that the launcher starts.
        .filter(|name| *name != variable::rank)
        .filter_map(|name| Some((name, options::lookup(given, name)?)))
        .collect()
}

/// What is preloaded in this environment besides the library.
fn own_preload() -> OsString {
    let existing = env::var_os("LD_PRELOAD").unwrap_or_default();
    library::without(&existing)
}

fn set_here() -> Vec<&'static str> {
    variable_names()
        .filter(|name| env::var_os(name).is_some())
        .collect()
}

/// A value for a format that is text.
fn text<'a>(name: &str, value: &'a OsStr) -> Result<&'a str> {
    value.to_str().ok_or_else(|| {
        let shown = value.display();
        usage(format_args!(
            "{name}=\"{shown}\": it is not UTF-8 (wanted: plain text)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::Variables;

    pub const LIBRARY: &str = "/opt/t/libtllmprof.so";

    pub fn some() -> Variables {
        vec![
            ("TLLMPROF_START_STOP", "2-3,7,30-".into()),
            ("TLLMPROF_NVTX_NAME", "it's {n} $(X) 5%".into()),
        ]
    }
}
