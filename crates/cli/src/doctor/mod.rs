//! `tllmprof doctor`: shows which calls of a program would be intercepted, which would not, and
//! why.

mod cuda;
mod elf;
mod finding;
mod machine;
mod program;
mod python;
mod reach;
mod search;
mod variables;
mod version;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use tllmprof_config::Level;

use crate::failure::{usage, with_status};
use crate::{library, manners, output};
use elf::{Elf, NotRead};
use finding::Section;
use program::Program;
pub(crate) use program::{NOT_A_PROGRAM, NOT_EXECUTABLE, NOT_FOUND};
use reach::Obstacle;
use search::Search;

#[derive(clap::Args)]
#[command(after_help = "Exit status: 0 if the program's CUDA calls will be intercepted, 1 if not.")]
pub(crate) struct DoctorArguments {
    /// Program to check, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let library_path = library::find()?;
    let (sections, has_driver) = examine(&arguments.command, &library_path);

    let is_coloured = manners::stdout().is_coloured;
    let mut text: String = sections
        .iter()
        .map(|section| section.text(is_coloured) + "\n")
        .collect();
    let good = !sections.iter().any(Section::is_bad);
    text.push_str(match (good, has_driver) {
        (true, true) => "The CUDA calls of this program will be intercepted.\n",
        (true, false) => {
            "Where there is a driver, the CUDA calls of this program will be intercepted.\n"
        }
        (false, _) => "The CUDA calls of this program will NOT be intercepted.\n",
    });
    output::text(&text)?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the reason why the file `library` cannot be preloaded as the tllmprof library. `None` if it can be
/// preloaded.
pub(crate) fn unfit(library: &Path) -> Option<String> {
    Elf::read(library).err().map(|error| reason(&error))
}

/// Returns the newest glibc version that a library requires, such as (2, 34). `None` if the library cannot be read, or
/// requires no glibc version.
pub(crate) fn required_glibc(library: &Path) -> Option<(u32, u32)> {
    let demanded = Elf::read(library).ok()?.glibc_demanded;
    demanded.map(version::Version::numbers)
}

/// Checks a program before it is started. Logs a warning if the program would run without libtllmprof.so.
///
/// # Errors
/// The program cannot start at all, or cannot start with the library preloaded.
pub(crate) fn admit(command: &[OsString], library: &Path, log: Level) -> Result<()> {
    let program = match Program::from_command(command) {
        Ok(program) => program,
        Err(refusal) => {
            let failure = |status| Err(with_status(status, &refusal.why));
            return refusal.status.map_or(Ok(()), failure);
        }
    };
    // An unreadable library is not reported here, because `tllmprof run` has already checked the library with `unfit`.
    let Ok(library) = Elf::read(library) else {
        return Ok(());
    };
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let subject = match program.chain.as_slice() {
        [script, .., executable] => {
            format!("{}: {}: ", script.display(), executable.display())
        }
        [executable] if program.loader.is_some() => {
            format!("{}: {}: ", name.display(), executable.display())
        }
        _ => format!("{}: ", name.display()),
    };
    match reach::obstacle(&program, &library, &Search::from_program(&program)) {
        Some(Obstacle::Fatal(why)) => return Err(usage(format_args!("{subject}{why}"))),
        Some(Obstacle::LeftOut(why)) if log >= Level::Warn => {
            output::say(format_args!("{subject}{why}: nothing will be captured"));
        }
        _ => {}
    }
    Ok(())
}

/// Returns all findings on the command and on libtllmprof.so, and whether this machine has an NVIDIA driver.
fn examine(command: &[OsString], library_path: &Path) -> (Vec<Section>, bool) {
    let mut has_driver = false;
    let mut about_library = Section::new("Library");
    let library = match Elf::read(library_path) {
        Ok(library) => {
            about_library.good(format_args!(
                "{}: {}",
                library_path.display(),
                library.architecture()
            ));
            Some(library)
        }
        Err(error) => {
            about_library.bad(format_args!(
                "{}: {}",
                library_path.display(),
                reason(&error)
            ));
            None
        }
    };

    let mut about_program = Section::new("Program");
    let mut about_cuda = Section::new("CUDA");
    let mut about_python = Section::new("Python");
    let mut about_machine = Section::new("Machine");
    match Program::from_command(command) {
        Err(refusal) => about_program.bad(refusal.why),
        Ok(program) => {
            let search = Search::from_program(&program);
            let closure = search.closure(&program);
            let obstacle = library
                .as_ref()
                .and_then(|library| reach::obstacle(&program, library, &search));
            describe_program(&mut about_program, &program, obstacle.as_ref());
            if program.elf.interpreter.is_some() {
                if let Some(library) = &library
                    && obstacle.is_none()
                {
                    describe_glibc(&mut about_library, &search, &program, library);
                }
                cuda::describe(&mut about_cuda, &closure);
                python::describe(&mut about_python, &program, &closure);
                for (name, by) in closure
                    .missing
                    .iter()
                    .filter(|(n, _)| !n.starts_with("libcuda"))
                {
                    about_program.note(format_args!("{by} needs {name}, which is not found here"));
                }
            } else {
                about_cuda.bad("its calls stay inside the executable, where nothing sees them");
            }
            let runtimes = closure
                .loaded
                .iter()
                .filter(|loaded| loaded.name.starts_with("libcudart"));
            let runtimes: Vec<_> = runtimes
                .filter_map(|runtime| Some(runtime.path.parent()?.to_owned()))
                .collect();
            has_driver = machine::describe(&mut about_machine, &search, &program.elf, &runtimes);
        }
    }

    let mut about_variables = Section::new("Variables");
    variables::describe(&mut about_variables);
    let sections = [
        about_program,
        about_library,
        about_cuda,
        about_python,
        about_machine,
        about_variables,
    ];
    let shown = sections.into_iter().filter(|section| !section.is_empty());
    (shown.collect(), has_driver)
}

fn reason(error: &NotRead) -> String {
    match error {
        NotRead::Io(error) => error.to_string(),
        NotRead::NotElf => "it is not an ELF file and cannot be preloaded".to_owned(),
        NotRead::Malformed(error) => format!("it is damaged: {error}"),
    }
}

fn describe_program(section: &mut Section, program: &Program, obstacle: Option<&Obstacle>) {
    let linker = program.elf.interpreter.as_ref();
    let path = program.path().display();
    for pair in program.chain.windows(2) {
        section.good(format_args!(
            "{} is a script for {}",
            pair[0].display(),
            pair[1].display()
        ));
    }
    if let Some(loader) = &program.loader {
        let loader = loader.path.display();
        section.good(format_args!(
            "{loader} is the dynamic linker, which runs {path}"
        ));
    }
    match linker {
        Some(linker) => section.good(format_args!(
            "{path}: {}, loaded by {linker}",
            program.elf.architecture()
        )),
        None => section.note(format_args!("{path}: {}", program.elf.architecture())),
    }
    if let Some(obstacle) = obstacle {
        section.bad(obstacle.why());
    }
    describe_kind(section, program);
}

/// Adds findings on well-known programs, such as Python or docker, which are recognized by their file names.
fn describe_kind(section: &mut Section, program: &Program) {
    let name = program.file_name();
    if name.starts_with("python") || name.starts_with("pypy") {
        let home = program.path().parent().and_then(Path::parent);
        if let Some(home) = home.filter(|home| home.join("pyvenv.cfg").is_file()) {
            section.note(format_args!(
                "it is the virtual environment {}",
                home.display()
            ));
        }
        section.note("Python loads CUDA with its modules, which no file shows before it runs");
    }
    match name {
        "docker" | "podman" | "nerdctl" | "kubectl" | "singularity" | "apptainer" => section
            .note("containers do not inherit variables: see tllmprof env --format docker, or k8s"),
        "mpirun" | "mpiexec" | "orterun" | "prterun" | "srun" | "ssh" => section.note(
            "processes on other hosts may not inherit variables: see tllmprof env --format mpirun",
        ),
        "sh" | "bash" | "dash" | "zsh" | "env" | "nice" | "nohup" | "numactl" | "setsid"
        | "stdbuf" | "taskset" | "timeout" | "xargs" => section
            .note("the programs that it starts inherit the library: ask doctor about each of them"),
        _ => {}
    }
}

fn describe_glibc(section: &mut Section, search: &Search, program: &Program, library: &Elf) {
    let Some(demanded) = library.glibc_demanded else {
        return;
    };
    match reach::glibc(program, search) {
        Some((_, provided)) => section.good(format_args!(
            "it requires glibc {demanded}, and the program's has symbols of {provided}"
        )),
        None => section.note(format_args!(
            "it requires glibc {demanded}; the program's was not found"
        )),
    }
}
