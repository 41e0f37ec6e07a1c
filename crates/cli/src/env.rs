//! `tllmprof env`: the variables, written the way a launcher takes them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use tllmprof_config::printable::is_hidden;
use tllmprof_config::{Level, RUN_VARIABLE, VARIABLES};

use crate::failure::usage;
use crate::options::{Given, Options};
use crate::which::{Found, which};
use crate::{doctor, library, output, quote, runs};

#[derive(clap::Args)]
#[command(after_help = "\
Variables that are set here are written too, as launchers often drop them.

  eval \"$(tllmprof env --window 100-150)\"
  eval docker run \"$(tllmprof env --window 100-150 --format docker)\" IMAGE
  eval mpirun -n 8 \"$(tllmprof env --window 100-150 --format mpirun)\" ./server")]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Who reads the variables
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
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
    /// Arguments of Open MPI's mpirun
    Mpirun,
    /// YAML for a container of a pod
    K8s,
}

type Variables = Vec<(&'static str, OsString)>;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let settings = arguments.options.settings()?;
    if arguments.options.gpu_metrics() && settings.log >= Level::Warn {
        output::say(format_args!(
            "--gpu-metrics: there is no variable for it, as tllmprof run takes them outside the program"
        ));
    }
    let library = library::find()?;
    if let Some(name) = arguments.command.first() {
        if which(name) == Found::Nothing {
            let name = name.display();
            return Err(usage(format_args!("{name}: there is no such program")));
        }
        doctor::admit(name, &library, settings.log)?;
    }
    let mut given = arguments.options.given();
    if env::var_os(RUN_VARIABLE).is_none_or(|run| run.is_empty())
        && given.iter().all(|given| given.variable != RUN_VARIABLE)
    {
        // Launchers do not pass on what names their job.
        let run = settings.run.map_or_else(runs::new_id, Ok)?;
        given.push(Given {
            option: "--run",
            variable: RUN_VARIABLE,
            value: run.as_str().into(),
        });
    }
    let variables = variables(&given);
    let text = match arguments.format {
        Format::Shell => shell(&library, &variables),
        Format::Docker => docker(&library, &variables),
        Format::Mpirun => mpirun(&library, env::var_os("LD_PRELOAD"), &variables),
        Format::K8s => k8s(&library, &variables)?,
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The variables of the options and of this environment, in the order of the table.
fn variables(given: &[Given]) -> Variables {
    VARIABLES
        .iter()
        // The rank differs in every process that the launcher starts.
        .filter(|variable| variable.name != "TLLMPROF_RANK")
        .filter_map(|variable| {
            let option = given.iter().find(|given| given.variable == variable.name);
            let value = option
                .map(|g| g.value.clone())
                .or_else(|| env::var_os(variable.name))?;
            Some((variable.name, value))
        })
        .collect()
}

fn assignment(name: &str, value: &OsStr) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_bytes()].concat()
}

fn shell(library: &Path, variables: &Variables) -> Vec<u8> {
    let mut out = b"export LD_PRELOAD=".to_vec();
    out.extend(quote::quoted(library.as_os_str().as_bytes()));
    out.extend_from_slice(b"\"${LD_PRELOAD:+:$LD_PRELOAD}\"\n");
    for (name, value) in variables {
        out.extend_from_slice(format!("export {name}=").as_bytes());
        out.extend(quote::quoted(value.as_bytes()));
        out.push(b'\n');
    }
    out
}

fn docker(library: &Path, variables: &Variables) -> Vec<u8> {
    let library = library.as_os_str();
    let mount = [library.as_bytes(), b":", library.as_bytes(), b":ro"].concat();
    let mut words = vec![
        b"-v".to_vec(),
        mount,
        b"-e".to_vec(),
        assignment("LD_PRELOAD", library),
    ];
    for (name, value) in variables {
        words.extend([b"-e".to_vec(), assignment(name, value)]);
    }
    line(&words)
}

fn mpirun(library: &Path, existing: Option<OsString>, variables: &Variables) -> Vec<u8> {
    let preload = library::preload(library, existing);
    let mut words = vec![b"-x".to_vec(), assignment("LD_PRELOAD", &preload)];
    for (name, value) in variables {
        words.extend([b"-x".to_vec(), assignment(name, value)]);
    }
    line(&words)
}

fn line(words: &[Vec<u8>]) -> Vec<u8> {
    let words: Vec<_> = words.iter().map(|word| quote::word(word)).collect();
    [words.join(&b' '), b"\n".to_vec()].concat()
}

fn k8s(library: &Path, variables: &Variables) -> Result<Vec<u8>> {
    let path = scalar("LD_PRELOAD", library.as_os_str())?;
    let mut out = String::from("# In the container's spec:\nenv:\n");
    out.push_str(&format!(
        "- name: LD_PRELOAD\n  value: {}\n",
        expanded(&path)
    ));
    for (name, value) in variables {
        let value = expanded(&scalar(name, value)?);
        out.push_str(&format!("- name: {name}\n  value: {value}\n"));
    }
    out.push_str(&format!(
        "# The library, from a node that has it. In the container's spec:\n\
         #   volumeMounts:\n\
         #   - name: tllmprof\n\
         #     mountPath: {path}\n\
         #     readOnly: true\n\
         # In the pod's spec:\n\
         #   volumes:\n\
         #   - name: tllmprof\n\
         #     hostPath:\n\
         #       path: {path}\n\
         #       type: File\n"
    ));
    Ok(out.into_bytes())
}

/// A double-quoted YAML scalar.
fn scalar(name: &str, value: &OsStr) -> Result<String> {
    let Some(text) = value.to_str() else {
        let shown = value.display();
        return Err(usage(format_args!(
            "{name}=\"{shown}\": it is not UTF-8 (wanted: plain text)"
        )));
    };
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\u{10000}'.. if is_hidden(c) => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c if is_hidden(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(out)
}

/// Kubernetes expands `$(NAME)` in values and takes `$$` for a single dollar.
fn expanded(scalar: &str) -> String {
    scalar.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "/opt/t/libtllmprof.so";

    fn some() -> Variables {
        vec![
            ("TLLMPROF_START_STOP", "2-3,7,30-".into()),
            ("TLLMPROF_NVTX_NAME", "it's {n} $(X)".into()),
        ]
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn docker_mounts_the_library() {
        assert_eq!(
            text(docker(Path::new(LIBRARY), &some())),
            "-v /opt/t/libtllmprof.so:/opt/t/libtllmprof.so:ro -e LD_PRELOAD=/opt/t/libtllmprof.so \
             -e TLLMPROF_START_STOP=2-3,7,30- -e 'TLLMPROF_NVTX_NAME=it'\\''s {n} $(X)'\n"
        );
    }

    #[test]
    fn mpirun_keeps_what_is_preloaded() {
        let existing = Some(OsString::from("/a.so"));
        assert_eq!(
            text(mpirun(Path::new(LIBRARY), existing, &some()[..1].to_vec())),
            "-x LD_PRELOAD=/opt/t/libtllmprof.so:/a.so -x TLLMPROF_START_STOP=2-3,7,30-\n"
        );
    }

    #[test]
    fn kubernetes_gets_strings_and_no_expansion() {
        let yaml = text(k8s(Path::new(LIBRARY), &some()).unwrap());
        assert!(
            yaml.contains("- name: TLLMPROF_START_STOP\n  value: \"2-3,7,30-\"\n"),
            "{yaml}"
        );
        assert!(yaml.contains("  value: \"it's {n} $$(X)\"\n"), "{yaml}");
        assert!(
            yaml.contains("#       path: \"/opt/t/libtllmprof.so\"\n"),
            "{yaml}"
        );
        assert_eq!(
            scalar("X", OsStr::new("a\"\\\n\u{1}")).unwrap(),
            "\"a\\\"\\\\\\u000a\\u0001\""
        );
        assert!(scalar("X", OsStr::from_bytes(b"\xff")).is_err());
    }
}
