//! The executable that a command comes down to, through scripts and their interpreters.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{Elf, NotRead};
use crate::which::{Found, which};

/// Scripts whose interpreters are scripts: the kernel follows no more than this.
const DEPTH: usize = 5;

/// The executable and how it was come by.
#[derive(Debug)]
pub struct Program {
    /// The script and its interpreters, the executable last.
    pub chain: Vec<PathBuf>,
    pub elf: Elf,
    /// The dynamic linker that the command names, which loads the executable whichever one that asks for.
    pub loader: Option<Loader>,
}

/// A dynamic linker on the command line.
#[derive(Debug)]
pub struct Loader {
    pub path: PathBuf,
    /// `--library-path`, in the place of `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
}

impl Program {
    pub fn path(&self) -> &Path {
        self.chain.last().map_or(Path::new(""), PathBuf::as_path)
    }

    pub fn file_name(&self) -> &str {
        self.path()
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default()
    }

    /// # Errors
    /// What keeps the command from starting, in words.
    pub fn of_command(command: &[OsString]) -> Result<Self, String> {
        let arguments = command.get(1..).unwrap_or_default();
        let command = command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let first = match which(command) {
            Found::Program(path) => path,
            Found::NotExecutable(path) => {
                return Err(format!("{} is not executable", path.display()));
            }
            Found::Nothing => {
                return Err(format!("{}: there is no such program", command.display()));
            }
        };
        let mut chain = vec![first.clone()];
        let mut path = first;
        while chain.len() <= DEPTH {
            match Elf::read(&path) {
                Ok(elf) => {
                    if let ([path], true) = (&chain[..], is_loader(&path, &elf))
                        && let Some(loaded) = loaded(path, arguments)
                    {
                        return loaded;
                    }
                    return Ok(Self {
                        chain,
                        elf,
                        loader: None,
                    });
                }
                Err(NotRead::NotElf) => {}
                Err(NotRead::Io(error)) => return Err(format!("{}: {error}", path.display())),
                Err(NotRead::Malformed(error)) => {
                    return Err(format!("{} is damaged: {error}", path.display()));
                }
            }
            path = interpreter(&path)?;
            chain.push(path.clone());
        }
        Err(format!("{} has too many interpreters", chain[0].display()))
    }
}

/// Whether a file is a dynamic linker that can be run: it asks for no other one.
fn is_loader(path: &Path, elf: &Elf) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    elf.interpreter.is_none() && (elf.is_loader() || name.starts_with(b"ld-musl"))
}

/// The executable that a dynamic linker on the command line loads; `None` if it only shows something.
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
            // musl's linker takes values in the same argument, too.
            option if WITH_VALUE.contains(&option) => drop(arguments.next()?),
            option => match option.split_once('=') {
                Some(("--library-path", value)) => library_path = Some(value.into()),
                Some((name, _)) if WITH_VALUE.contains(&name) => {}
                // It lists, checks or helps, and runs nothing.
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

/// The program that runs a script.
fn interpreter(script: &Path) -> Result<PathBuf, String> {
    let mut start = Vec::new();
    // The kernel looks no further than 256 bytes for the end of the line.
    File::open(script)
        .and_then(|file| file.take(256).read_to_end(&mut start))
        .map_err(|error| format!("{}: {error}", script.display()))?;
    let Some(line) = start.strip_prefix(b"#!") else {
        // What a shell, and execvp(3), make of it.
        return Ok(PathBuf::from("/bin/sh"));
    };
    let line = line
        .split(|b| *b == b'\n')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let (name, argument) = match line.iter().position(|b| b" \t".contains(b)) {
        Some(at) => (&line[..at], line[at..].trim_ascii()),
        None => (line, &b""[..]),
    };
    let name = Path::new(OsStr::from_bytes(name));
    if name.file_name() == Some(OsStr::new("env")) && !argument.is_empty() {
        return through_env(script, argument);
    }
    match which(name.as_os_str()) {
        Found::Program(path) => Ok(path),
        _ => Err(format!(
            "{} asks for the interpreter {}, which is not there",
            script.display(),
            name.display()
        )),
    }
}

/// `#!/usr/bin/env python3`, with `-S` and assignments if there are any.
fn through_env(script: &Path, argument: &[u8]) -> Result<PathBuf, String> {
    let is_program = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    let mut words = argument
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let name = OsString::from(OsStr::from_bytes(
        words.find(is_program).unwrap_or_default(),
    ));
    match which(&name) {
        Found::Program(path) => Ok(path),
        _ => Err(format!(
            "{} asks env for {}, which is not on PATH",
            script.display(),
            name.display()
        )),
    }
}
