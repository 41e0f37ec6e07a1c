//! Finds the executable that a command finally runs, by following scripts and their interpreters.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{Elf, NotRead};
use crate::which::{CommandLookup, line_of_script, which};

/// The exit status with which env(1) and timeout(1) report that a program does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
/// The exit status with which env(1) and timeout(1) report that a program exists but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// The largest number of scripts that lead to an executable, each as the interpreter of the one before it. The kernel
/// refuses longer chains.
const MAX_SCRIPTS: usize = 5;

/// The executable that a command finally runs, and the scripts that lead to it.
#[derive(Debug)]
pub(crate) struct Program {
    /// The script, its interpreter, that interpreter's own interpreter if it is a script too, and so on. The executable
    /// is the last element.
    pub chain: Vec<PathBuf>,
    pub elf: Elf,
    /// The dynamic linker that the command line names, if any, as in `ld.so PROGRAM`. This linker then loads the
    /// executable, even if the executable requests another linker.
    pub loader: Option<Loader>,
}

/// The reason why a command cannot start, or why `doctor` cannot examine it.
#[derive(Debug)]
pub(super) struct StartRefusal {
    pub why: String,
    /// The exit status with which a shell would report the refusal. `None` if it is possible that the command starts.
    pub status: Option<u8>,
}

impl StartRefusal {
    fn new(status: u8, name: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            why: format!("{name}: {why}"),
            status: Some(status),
        }
    }
}

impl From<String> for StartRefusal {
    fn from(why: String) -> Self {
        Self { why, status: None }
    }
}

/// A dynamic linker that the user's command line names, as in `ld.so PROGRAM`.
#[derive(Debug)]
pub(crate) struct Loader {
    pub path: PathBuf,
    /// The value of the linker's option `--library-path`, which replaces `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
}

impl Program {
    pub(crate) fn path(&self) -> &Path {
        self.chain.last().map_or(Path::new(""), PathBuf::as_path)
    }

    pub(crate) fn file_name(&self) -> &str {
        self.path()
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default()
    }

    /// Finds the executable that a command runs.
    ///
    /// # Errors
    /// The command cannot start, or the files that it would run cannot be examined.
    pub(super) fn from_command(command: &[OsString]) -> Result<Self, StartRefusal> {
        let arguments = command.get(1..).unwrap_or_default();
        let command = command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let (status, why) = match which(command) {
            CommandLookup::Program(path) => return Self::from_file(path, arguments),
            CommandLookup::NotExecutable(_) => (NOT_EXECUTABLE, "it is not executable"),
            CommandLookup::Folder(_) => (NOT_EXECUTABLE, "it is a folder (wanted: a program)"),
            CommandLookup::Nothing => (NOT_FOUND, "there is no such program"),
        };
        Err(StartRefusal::new(status, command.display(), why))
    }

    fn from_file(first: PathBuf, arguments: &[OsString]) -> Result<Self, StartRefusal> {
        let mut chain = vec![first.clone()];
        let mut path = first;
        while chain.len() <= MAX_SCRIPTS + 1 {
            match Elf::read(&path) {
                Ok(elf) => {
                    if let ([path], true) = (&chain[..], is_loader(&path, &elf))
                        && let Some(loaded) = loaded(path, arguments)
                    {
                        return Ok(loaded?);
                    }
                    return Ok(Self {
                        chain,
                        elf,
                        loader: None,
                    });
                }
                Err(NotRead::NotElf) => {}
                Err(NotRead::Io(error)) => {
                    return Err(format!("{}: {error}", path.display()).into());
                }
                Err(NotRead::Malformed(error)) => {
                    return Err(format!("{} is damaged: {error}", path.display()).into());
                }
            }
            path = interpreter(&path)?;
            chain.push(path.clone());
        }
        Err(format!("{} has too many interpreters", chain[0].display()).into())
    }
}

/// Returns true if a file is a dynamic linker that can be run as a command. Such a file requests no other linker.
fn is_loader(path: &Path, elf: &Elf) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    elf.interpreter.is_none() && (elf.is_loader() || name.starts_with(b"ld-musl"))
}

/// Returns the executable that a dynamic linker on the command line loads. Returns `None` if the linker's options make
/// the linker only list something, check something or show its help.
fn loaded(loader: &Path, arguments: &[OsString]) -> Option<Result<Program, String>> {
    const WITH_VALUE: [&str; 7] = [
        "--library-path",
        "--inhibit-rpath",
        "--audit",
        "--preload",
        "--argv0",
        "--glibc-hwcaps-prepend",
        "--glibc-hwcaps-mask",
    ];
    let mut library_path = None;
    let mut arguments = arguments.iter();
    let path = loop {
        let argument = arguments.next()?;
        let Some(option) = argument
            .to_str()
            .filter(|argument| argument.starts_with("--"))
        else {
            break Path::new(argument);
        };
        match option {
            "--" => break Path::new(arguments.next()?),
            "--inhibit-cache" => {}
            "--library-path" => library_path = Some(arguments.next()?.clone()),
            // The value of these options is the next argument, which is skipped here. musl's linker also accepts the
            // form `OPTION=VALUE`, which the next branch handles.
            option if WITH_VALUE.contains(&option) => drop(arguments.next()?),
            option => match option.split_once('=') {
                Some(("--library-path", value)) => library_path = Some(value.into()),
                Some((name, _)) if WITH_VALUE.contains(&name) => {}
                // With any other option, the linker lists or checks something or shows help. It runs no program then.
                _ => return None,
            },
        }
    };
    let shown = path.display();
    Some(match Elf::read(path) {
        Ok(mut elf) => {
            elf.interpreter = Some(loader.display().to_string());
            Ok(Program {
                chain: vec![path.to_owned()],
                elf,
                loader: Some(Loader {
                    path: loader.to_owned(),
                    library_path,
                }),
            })
        }
        Err(NotRead::Io(error)) => Err(format!("{shown}: {error}")),
        Err(NotRead::NotElf) => Err(format!(
            "{shown} is not an ELF file, which {} cannot load",
            loader.display()
        )),
        Err(NotRead::Malformed(error)) => Err(format!("{shown} is damaged: {error}")),
    })
}

/// Returns the program that runs a script: the one that the `#!` line names, directly or through env(1). If there is no
/// such line, this is `/bin/sh`.
fn interpreter(script: &Path) -> Result<PathBuf, StartRefusal> {
    let line = line_of_script(script).map_err(|error| format!("{}: {error}", script.display()))?;
    let Some(line) = line else {
        let mut refusal = StartRefusal::new(NOT_EXECUTABLE, script.display(), NOT_A_PROGRAM);
        refusal.status = refusal.status.filter(|_| !has_other_formats());
        return Err(refusal);
    };
    let line = line.strip_prefix(b"#!").unwrap_or_default().trim_ascii();
    if line.is_empty() {
        // For a script without a `#!` line, shells and execvp(3) use sh.
        return Ok(PathBuf::from("/bin/sh"));
    }
    let (name, argument) = match line.iter().position(|b| b" \t".contains(b)) {
        Some(at) => (&line[..at], line[at..].trim_ascii()),
        None => (line, &b""[..]),
    };
    let name = Path::new(OsStr::from_bytes(name));
    if name.file_name() == Some(OsStr::new("env")) && !argument.is_empty() {
        return Ok(through_env(script, argument)?);
    }
    // The kernel does not search `PATH` for interpreters, so a name without a slash is relative to the working folder.
    let (status, why) = match which(Path::new(".").join(name).as_os_str()) {
        CommandLookup::Program(path) => {
            return Ok(path.strip_prefix("./").map_or(path.clone(), Path::to_owned));
        }
        CommandLookup::NotExecutable(_) | CommandLookup::Folder(_) => {
            (NOT_EXECUTABLE, "cannot be executed")
        }
        CommandLookup::Nothing => (NOT_FOUND, "is not there"),
    };
    let why = format!("the interpreter {}, which it names, {why}", name.display());
    Err(StartRefusal::new(status, script.display(), why))
}

/// The message for a file that neither the kernel nor a shell executes.
pub(crate) const NOT_A_PROGRAM: &str = "it is neither an executable of this machine nor a script";

/// Returns true if this machine's kernel can start files of other formats than ELF and scripts (binfmt_misc).
fn has_other_formats() -> bool {
    let registered = fs::read_dir("/proc/sys/fs/binfmt_misc");
    let mut names = registered
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names.any(|name| name != "register" && name != "status")
}

/// Returns the program in a line such as `#!/usr/bin/env python3`. The line may also contain `-S` and assignments.
fn through_env(script: &Path, argument: &[u8]) -> Result<PathBuf, String> {
    let is_program = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    let mut words = argument
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let name = OsString::from(OsStr::from_bytes(
        words.find(is_program).unwrap_or_default(),
    ));
    match which(&name) {
        CommandLookup::Program(path) => Ok(path),
        _ => Err(format!(
            "{} asks env for {}, which is not on PATH",
            script.display(),
            name.display()
        )),
    }
}
