//! Processes of the program that load the CUDA driver without the library, such as workers that an engine starts with a
//! cleaned environment. Nothing in such a process says that it is not recorded.
//!
//! A thread looks at `/proc` from time to time. It is a thread because reading the mappings of a process waits for a thread
//! that changes them, and the command has to pass signals on meanwhile.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tllmprof_config::printable;

use crate::background::COMMAND;
use crate::library::NAME;
use crate::live::process_numbers;
use crate::process_status::ProcessStatus;

/// Time between the first two looks, as programs may be short, and between the last two.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const LAST_INTERVAL: Duration = Duration::from_secs(5);
/// The looks take at most one part in this many of a processor's time, also where there are very many processes.
const SHARE: u32 = 50;
/// Processes that the line names.
const SHOWN: usize = 3;

/// A program in a process: another one after each exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Image {
    started: u64,
    /// The addresses of its stack and of its variables, which the kernel chooses by chance.
    places: [u64; 2],
}

/// A process: its name, its parent and its program.
#[derive(PartialEq, Eq, Debug)]
struct Status {
    name: String,
    parent: u64,
    image: Image,
}

impl Status {
    fn new(status: ProcessStatus) -> Option<Self> {
        Some(Self {
            parent: status.parent()?,
            image: Image {
                started: status.field(22)?,
                places: [status.field(28)?, status.field(50)?],
            },
            name: status.name,
        })
    }

    fn read(number: u64) -> Option<Self> {
        Self::new(ProcessStatus::read(number)?)
    }
}

/// The libraries that a process has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapped {
    Neither,
    Library,
    DriverAlone,
}

impl Mapped {
    /// Of `/proc/PID/maps`. A process that only reads the driver's file, as a symbolizer does, does not execute it.
    fn parse(maps: &[u8], library: &[u8]) -> Self {
        let mut mapped = Self::Neither;
        for line in maps.split(|byte| *byte == b'\n') {
            let name = line.rsplit(|byte| *byte == b'/').next().unwrap_or(line);
            // Attached to a process in a container, it is a file in memory.
            let file = name.strip_prefix(b"memfd:").unwrap_or(name);
            if file.starts_with(library) || file.starts_with(NAME.as_bytes()) {
                return Self::Library;
            }
            let rights = line.split(|byte| *byte == b' ').nth(1);
            if name.starts_with(b"libcuda.so") && rights.is_some_and(|it| it.contains(&b'x')) {
                mapped = Self::DriverAlone;
            }
        }
        mapped
    }
}

/// A process that has loaded the driver, and not the library.
#[derive(Clone)]
struct Unreached {
    number: u64,
    name: String,
    image: Image,
    /// It was started without the library in `LD_PRELOAD`, as far as its variables could be read.
    has_lost_preload: bool,
}

/// The program's processes.
#[derive(Default)]
struct Processes {
    /// Those that run, and whether they have the library.
    running: HashMap<u64, (Image, bool)>,
    unreached: Vec<Unreached>,
}

impl Processes {
    /// Looks at the processes below the command, and at those that were there at an earlier look. What is below another
    /// `tllmprof run` is that one's.
    fn look(&mut self, command: u64, library: &Path) {
        let all: HashMap<_, _> = process_numbers()
            .filter_map(|number| Some((number, Status::read(number)?)))
            .collect();
        let started = |number| all.get(&number).map(|status| status.image.started);
        let mut ours: HashSet<u64> = self.running.keys().copied().collect();
        ours.retain(|number| started(*number) == Some(self.running[number].0.started));
        loop {
            let before = ours.len();
            let is_child =
                |status: &Status| ours.contains(&status.parent) || status.parent == command;
            let children = all
                .iter()
                .filter(|(_, status)| is_child(status) && status.name != COMMAND);
            let children: Vec<_> = children.map(|(number, _)| *number).collect();
            ours.extend(children);
            if ours.len() == before {
                break;
            }
        }
        let file = library.file_name().unwrap_or_default().as_bytes();
        self.running = all
            .into_iter()
            .filter(|(number, _)| ours.contains(number))
            .map(|(number, status)| {
                let before = self.running.get(&number).copied();
                let has_library = before == Some((status.image, true))
                    || self.examine(number, &status, file) == Mapped::Library;
                (number, (status.image, has_library))
            })
            .collect();
    }

    fn examine(&mut self, number: u64, status: &Status, library: &[u8]) -> Mapped {
        let Ok(maps) = fs::read(format!("/proc/{number}/maps")) else {
            return Mapped::Neither;
        };
        let mapped = Mapped::parse(&maps, library);
        let is_it = |known: &Unreached| known.number == number && known.image == status.image;
        let is_known = self.unreached.iter().any(is_it);
        match mapped {
            // Attached since.
            Mapped::Library => self.unreached.retain(|known| !is_it(known)),
            Mapped::DriverAlone if !is_known => {
                self.unreached.push(Unreached {
                    number,
                    name: status.name.clone(),
                    image: status.image,
                    has_lost_preload: has_lost_preload(number, library),
                });
            }
            Mapped::DriverAlone | Mapped::Neither => {}
        }
        mapped
    }
}

/// Returns true if the process was started without the library in `LD_PRELOAD`; false also where that is not known.
fn has_lost_preload(number: u64, library: &[u8]) -> bool {
    let Ok(variables) = fs::read(format!("/proc/{number}/environ")) else {
        return false;
    };
    let mut entries = variables.split(|byte| *byte == 0);
    let preload = entries.find_map(|entry| entry.strip_prefix(b"LD_PRELOAD="));
    let mut paths = preload
        .unwrap_or_default()
        .split(|byte| b" :".contains(byte));
    !paths.any(|path| path.rsplit(|byte| *byte == b'/').next() == Some(library))
}

/// A thread that looks for programs without the library, until this value is dropped.
pub struct ProgramWatch {
    /// The processes that were found so far.
    found: Arc<Mutex<Vec<Unreached>>>,
    _runs: Sender<()>,
}

impl ProgramWatch {
    /// Begins to look; `None` if no thread can be started. All signals are blocked, so the thread gets none.
    pub fn start(library: PathBuf) -> Option<Self> {
        let found = Arc::default();
        let (runs, ended) = mpsc::channel::<()>();
        let shared: Arc<Mutex<Vec<Unreached>>> = Arc::clone(&found);
        let look = move || {
            let command = u64::from(std::process::id());
            let mut processes = Processes::default();
            let mut interval = FIRST_INTERVAL;
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                processes.look(command, &library);
                // Never held during a look, which may take long.
                shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone_from(&processes.unreached);
                interval = (interval * 2)
                    .min(LAST_INTERVAL)
                    .max(begun.elapsed() * SHARE);
            }
        };
        let thread = thread::Builder::new().name("unreached".to_owned());
        thread.spawn(look).ok()?;
        Some(Self { found, _runs: runs })
    }

    /// The line about what was found, if there is something.
    pub fn finish(self) -> Option<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> = found.iter().map(|one| (one.clone(), one.runs())).collect();
        found.sort_by_key(|(one, _)| one.number);
        (!found.is_empty()).then(|| Line(&found).to_string())
    }
}

impl Unreached {
    fn runs(&self) -> bool {
        Status::read(self.number).is_some_and(|now| now.image == self.image)
    }
}

/// The line about these processes, and whether each still runs.
struct Line<'a>(&'a [(Unreached, bool)]);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(all) = self;
        let is_one = all.len() == 1;
        let words = match is_one {
            true => ["process", "it"],
            false => ["processes", "them"],
        };
        let [process, them] = words;
        for (index, (one, _)) in all.iter().take(SHOWN).enumerate() {
            let before = if index == 0 { process } else { "," };
            write!(f, "{before} {} ({})", one.number, printable(&one.name))?;
        }
        if all.len() > SHOWN {
            write!(f, " and {} more", all.len() - SHOWN)?;
        }
        f.write_str(" loaded the CUDA driver without the library")?;
        if all.iter().all(|(one, _)| one.has_lost_preload) {
            write!(
                f,
                ": LD_PRELOAD was not passed on to {them}. Start {them} with the variables that tllmprof env prints, or attach"
            )?;
        } else {
            f.write_str(". Attach")?;
        }
        write!(f, " to {them} at run time: tllmprof attach")?;
        let running: Vec<_> = all.iter().filter(|(_, runs)| *runs).collect();
        match running.is_empty() || running.len() < all.len() {
            true => f.write_str(" PID"),
            false => running
                .iter()
                .try_for_each(|(one, _)| write!(f, " {}", one.number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_a_name_a_parent_and_an_image() {
        let fields: Vec<_> = (4..=52).map(|number| number.to_string()).collect();
        let parse = |stat: &str| Status::new(ProcessStatus::parse(stat)?);
        let status = parse(&format!("7 (a) b (c)) S {}\n", fields.join(" ")));
        let image = Image {
            started: 22,
            places: [28, 50],
        };
        assert_eq!(
            status,
            Some(Status {
                name: "a) b (c)".to_owned(),
                parent: 4,
                image
            })
        );
        assert_eq!(parse("7 (a) S 4 5\n"), None);
        let own = Status::read(u64::from(std::process::id())).unwrap();
        assert!(own.image.places.iter().all(|place| *place > 0), "{own:?}");
    }

    #[test]
    fn the_driver_alone_is_one_that_is_executed_without_the_library() {
        let of = |names: &[(&str, &str)]| {
            let lines = names.iter().map(|(rights, name)| {
                format!("7f00-7f10 {rights} 00000000 08:01 12      {name}\n")
            });
            Mapped::parse(lines.collect::<String>().as_bytes(), b"ours.so")
        };
        let driver = ("r-xp", "/usr/lib/libcuda.so.550.54");
        assert_eq!(of(&[("r-xp", "/lib/libc.so.6")]), Mapped::Neither);
        assert_eq!(of(&[("r--p", driver.1)]), Mapped::Neither);
        assert_eq!(of(&[("r-xp", "/lib/libcudart.so.12")]), Mapped::Neither);
        assert_eq!(of(&[("r--p", driver.1), driver]), Mapped::DriverAlone);
        for library in [
            "/a/libtllmprof.so (deleted)",
            "/b/ours.so",
            "/memfd:libtllmprof.so (deleted)",
        ] {
            assert_eq!(
                of(&[driver, ("r-xp", library)]),
                Mapped::Library,
                "{library}"
            );
        }
    }
}
