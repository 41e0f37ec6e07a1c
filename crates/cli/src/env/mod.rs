//! `tllmprof env`: prints the variables that load and configure the library, in the syntax of a shell, a launcher or a
//! container system.

mod files;
mod words;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use tllmprof_config::error::shown;
use tllmprof_config::{Level, Settings, variable, variable_names};

use crate::failure::{usage, worded};
use crate::options::{self, Given, Measures, Options};
use crate::{doctor, library, output, records, runs};

#[derive(clap::Args)]
#[command(after_help = "\
Variables of tllmprof that are set in this environment are printed as well, because launchers often drop them.

  eval \"$(tllmprof env --window 100-150)\"         # for all programs that this shell starts later
  eval \"$(tllmprof env --unset)\"                  # remove the variables again
  eval docker run \"$(tllmprof env --window 100-150 --format docker)\" IMAGE
  eval mpirun -n 8 \"$(tllmprof env --window 100-150 --format mpirun)\" ./server
  eval srun -N 2 \"$(tllmprof env --window 100-150 --format slurm)\" ./server
  eval torchrun --nproc-per-node 8 \"$(tllmprof env --window 100-150 --format torchrun)\" python3 serve.py
  ray job submit --runtime-env-json \"$(tllmprof env --window 100-150 --format ray)\" -- python3 serve.py
  tllmprof env --window 100-150 --format compose --name SERVICE > tllmprof.yaml
  tllmprof env --window 100-150 --format systemd > tllmprof.conf
  tllmprof env --window 100-150 --format k8s --name CONTAINER > tllmprof-patch.yaml")]
pub(crate) struct EnvArguments {
    #[command(flatten)]
    options: Options,
    /// Output format, for the shell or launcher that sets the variables
    #[arg(long, value_enum, default_value_t = EnvFormat::Shell)]
    format: EnvFormat,
    /// With k8s: name of the container that gets the library; with compose: name of the service
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// With k8s: image that contains the library, as your registry names it [default: tllmprof:VERSION]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Print shell lines that remove the library and its variables from this shell
    #[arg(long, exclusive = true)]
    unset: bool,
    /// Program on this machine that will get the variables; the command fails if that program would not start with the
    /// library
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum EnvFormat {
    /// Lines for a POSIX shell
    Shell,
    /// Arguments for docker run and podman run
    Docker,
    /// A second file for docker compose
    Compose,
    /// A strategic-merge patch for kubectl patch
    K8s,
    /// Arguments for mpirun of Open MPI
    Mpirun,
    /// Arguments for srun, to insert right before the program
    Slurm,
    /// Arguments for torchrun, to insert right before the program
    Torchrun,
    /// A runtime environment for Ray, as JSON
    Ray,
    /// A drop-in file for a systemd unit
    Systemd,
}

/// The default name of the image that contains the library. The image's tag is the version of tllmprof.
const IMAGE: &str = concat!("tllmprof:", env!("CARGO_PKG_VERSION"));

type Variables = Vec<(&'static str, OsString)>;

pub(crate) fn run(arguments: &EnvArguments) -> Result<ExitCode> {
    if arguments.unset {
        output::print(&words::unset(&own_preload(), &set_here()))?;
        return Ok(ExitCode::SUCCESS);
    }
    arguments.check_format()?;
    let settings = arguments.options.settings(Measures::All)?;
    if arguments.options.gpu_metrics() && settings.log >= Level::Warn {
        output::say(format_args!(
            "--gpu-metrics: there is no variable for it, as tllmprof run takes them outside the program"
        ));
    }
    let library = arguments.library()?;
    if !arguments.command.is_empty() {
        doctor::admit(&arguments.command, &library, settings.log).map_err(usage)?;
    } else if arguments.format == EnvFormat::Shell {
        // All programs that the user starts from the shell will get the library. If the system does not meet the
        // library's requirements, for example because its glibc is too old, none of these programs would start. So this
        // is checked first, for `/bin/sh` as an example of these programs.
        doctor::admit(&["/bin/sh".into()], &library, Level::Off)?;
    }
    let variables = arguments.variables(&settings)?;
    let records = arguments.host_records(&variables)?;
    let text = arguments.text(&library, records.as_deref(), &variables)?;
    output::print(&text)?;
    if let Some(folder) = records.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        say_if(
            settings.log >= Level::Warn,
            format_args!(
                "env: records go to {folder} (before that, as the user of the container writes there: mkdir -m 1777 {folder})"
            ),
        );
    }
    if arguments.format == EnvFormat::Shell && settings.log >= Level::Warn {
        output::say(format_args!(
            "env: a shell that evaluates these lines preloads the library into every program that it starts \
             (to remove it: eval \"$(tllmprof env --unset)\")"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

impl EnvArguments {
    fn text(
        &self,
        library: &Path,
        records: Option<&Path>,
        variables: &Variables,
    ) -> Result<Vec<u8>> {
        let preload = || library::preload(library, env::var_os("LD_PRELOAD"));
        Ok(match self.format {
            EnvFormat::Shell => words::shell(library, variables),
            EnvFormat::Docker => words::docker(library, records, variables),
            EnvFormat::Mpirun => words::mpirun(&preload(), variables),
            // srun's `--export` takes a list of variables that are separated by commas, but their values may contain
            // commas, too. So env(1) sets the variables.
            EnvFormat::Slurm => words::by_env("--export=ALL", &preload(), variables),
            EnvFormat::Torchrun => words::by_env("--no-python", &preload(), variables),
            EnvFormat::Ray => files::ray(&preload(), variables)?,
            EnvFormat::Systemd => files::systemd(library, variables)?,
            EnvFormat::Compose => files::compose(self.receiver("service")?, library, variables)?,
            EnvFormat::K8s => files::k8s(
                self.receiver("container")?,
                self.image.as_deref().unwrap_or(IMAGE),
                variables,
            )?,
        })
    }

    /// Checks that the output's format uses the options `--name` and `--image`, if the user gave them.
    ///
    /// # Errors
    /// The user gave one of these options, and the format does not use it.
    fn check_format(&self) -> Result<()> {
        let is_named = matches!(self.format, EnvFormat::K8s | EnvFormat::Compose);
        if self.name.is_some() && !is_named {
            return Err(usage(
                "--name: the format has no container or service (wanted: --format k8s or compose as well)",
            ));
        }
        if self.image.is_some() && self.format != EnvFormat::K8s {
            return Err(usage(
                "--image: the format has no image (wanted: --format k8s as well)",
            ));
        }
        Ok(())
    }

    /// Returns the folder on this machine that is mounted into a Docker container for records. `None` for other
    /// formats, and if no record goes to the container's default folder.
    fn host_records(&self, variables: &Variables) -> Result<Option<PathBuf>> {
        if self.format != EnvFormat::Docker || !files::is_recorded_in(files::RECORDS, variables) {
            return Ok(None);
        }
        let folder = env::current_dir()?.join(files::RECORDS.trim_start_matches('/'));
        Ok(Some(folder))
    }

    /// Returns the path of the library on this machine. The format `k8s` does not use this path, so the path is then
    /// empty, unless the user named a program to check.
    fn library(&self) -> Result<PathBuf> {
        if self.format == EnvFormat::K8s && self.command.is_empty() {
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

    /// Returns the variables to print: those that the options or this environment set. The identifier of the run, which
    /// all processes of the run must share, and the path of records are added if they are not set.
    fn variables(&self, settings: &Settings) -> Result<Variables> {
        let mut given = self.options.given(Measures::All);
        let is_given = |name: &str, given: &[Given]| {
            env::var_os(name).is_some_and(|value| !value.is_empty())
                || given.iter().any(|given| given.variable == name)
        };
        if !is_given(variable::run, &given) {
            // All processes that the launcher starts get this run identifier. They could not agree on an identifier
            // themselves, because launchers do not pass on the variables that name the launcher's job.
            let run = settings.run.clone().map_or_else(runs::new_id, Ok)?;
            given.push(Given {
                option: "--run",
                variable: variable::run,
                value: run.as_str().into(),
            });
        }
        let is_set = env::var_os(variable::trace).is_some();
        if !is_set && !is_given(variable::trace, &given) {
            given.extend(self.records(settings.log)?.map(|value| Given {
                option: "--trace",
                variable: variable::trace,
                value,
            }));
        }
        self.check_text(&given)?;
        Ok(variables(&given))
    }

    /// Returns the default path of records. For containers and systemd units the path is in the folder that the
    /// printed configuration mounts or creates. Otherwise it is in the working folder; `None` if no file can be
    /// created there.
    fn records(&self, log: Level) -> Result<Option<OsString>> {
        let folder = match self.format {
            EnvFormat::K8s | EnvFormat::Compose | EnvFormat::Docker => files::RECORDS,
            EnvFormat::Systemd => files::LOGS,
            _ => {
                let here = env::current_dir()?;
                if let Err(error) = records::may_create_in(&here) {
                    say_if(
                        log >= Level::Warn,
                        format_args!(
                            "env: no record will be written, as this folder cannot be written to: {} (--trace PATH names \
                         another place)",
                            worded(&error.to_string())
                        ),
                    );
                    return Ok(None);
                }
                return Ok(Some(records::make_absolute(records::DEFAULT.into())?));
            }
        };
        Ok(Some(format!("{folder}/%h-%r-%p.tllmprof").into()))
    }

    /// Checks that all values on the command line can be written in the format.
    ///
    /// # Errors
    /// A typed value is not UTF-8, but the format is a text file.
    fn check_text(&self, given: &[Given]) -> Result<()> {
        let is_text = matches!(
            self.format,
            EnvFormat::K8s | EnvFormat::Compose | EnvFormat::Systemd | EnvFormat::Ray
        );
        let bad = given.iter().find(|given| given.value.to_str().is_none());
        match bad.filter(|_| is_text) {
            None => Ok(()),
            Some(Given { option, value, .. }) => Err(usage(format_args!(
                "{option} \"{}\": it is not UTF-8 (wanted: plain text)",
                shown(value)
            ))),
        }
    }
}

fn say_if(is_wanted: bool, message: fmt::Arguments<'_>) {
    if is_wanted {
        output::say(message);
    }
}

/// Returns the variables that the options or this environment set, in the order of [`variable_names`].
fn variables(given: &[Given]) -> Variables {
    variable_names()
        // The launcher starts several processes with different ranks, so no common rank is set.
        .filter(|name| *name != variable::rank)
        .filter_map(|name| Some((name, options::lookup(given, name)?)))
        .collect()
}

/// Returns the value of `LD_PRELOAD` in this environment, without the entries for the library of tllmprof.
fn own_preload() -> OsString {
    let existing = env::var_os("LD_PRELOAD").unwrap_or_default();
    library::without(&existing)
}

fn set_here() -> Vec<&'static str> {
    variable_names()
        .filter(|name| env::var_os(name).is_some())
        .collect()
}

/// Returns the value of a variable as text. Fails if it is not UTF-8, because the format is a text file.
fn text<'a>(name: &str, value: &'a OsStr) -> Result<&'a str> {
    value.to_str().ok_or_else(|| {
        let shown = shown(value);
        usage(format_args!(
            "{name}=\"{shown}\": it is not UTF-8 (wanted: plain text)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::Variables;

    pub(crate) const LIBRARY: &str = "/opt/t/libtllmprof.so";

    pub(crate) fn some() -> Variables {
        vec![
            ("TLLMPROF_START_STOP", "2-3,7,30-".into()),
            ("TLLMPROF_NVTX_NAME", "it's {n} $(X) 5%".into()),
        ]
    }
}
