//! Finds processes of the program that load the CUDA driver without our library, such as workers that an engine starts
//! with a cleaned environment. The library is missing in such a process, so the process itself cannot report that it is
//! not recorded.
//!
//! A separate thread reads `/proc` from time to time. The main thread does not do this, because reading the mappings of
//! a process may block while that process changes them, and the main thread has to pass signals on to the program.

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

use crate::background::{COMMAND, GPU_SAMPLER};
use crate::driver_user::is_driver;
use crate::library::NAME;
use crate::live::process_numbers;
use crate::process_status::{ProcessStatus, read_variables};

/// Time before the first search for processes without the library. It is short because a program may end soon. After
/// each search, the time until the next one doubles.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
/// The longest time between two searches for processes without the library, unless the searches are so slow that
/// [`SHARE`] requires a longer time.
const LAST_INTERVAL: Duration = Duration::from_secs(5);
/// Divisor that limits the processor time of the searches: they use at most 1/`SHARE` of the time of one processor,
/// even if there are very many processes.
const SHARE: u32 = 50;
/// The largest number of processes that the message about processes without the library names.
const SHOWN: usize = 3;

/// The identity of the program that a process executes. It changes with each exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Image {
    started: u64,
    /// The addresses of the process's stack and environment. The kernel chooses these addresses at random at each exec,
    /// so they identify the program.
    places: [u64; 2],
}

/// A process: its name, the process id of its parent, and the program that it executes.
#[derive(PartialEq, Eq, Debug)]
struct ProcessSummary {
    name: String,
    parent: u64,
    image: Image,
}

impl ProcessSummary {
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

/// The libraries that a process has mapped: the tllmprof library, the CUDA driver without it, or neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapped {
    Neither,
    Library,
    DriverAlone,
}

impl Mapped {
    /// Parses `/proc/PID/maps`.
    fn parse(maps: &[u8], library: &[u8]) -> Self {
        let mut mapped = Self::Neither;
        for line in maps.split(|byte| *byte == b'\n') {
            let name = line.rsplit(|byte| *byte == b'/').next().unwrap_or(line);
            // In a process of a container, `tllmprof attach` loads the library from a file in memory (`memfd`).
            let file = name.strip_prefix(b"memfd:").unwrap_or(name);
            if file.starts_with(library) || file.starts_with(NAME.as_bytes()) {
                return Self::Library;
            }
            if is_driver(line) {
                mapped = Self::DriverAlone;
            }
        }
        mapped
    }
}

/// Returns true if a process with this name is the command itself, or the command's process that samples the GPUs.
fn is_ours(name: &str) -> bool {
    name == COMMAND || name.as_bytes() == GPU_SAMPLER.to_bytes()
}

/// A process that has loaded the CUDA driver but not the tllmprof library.
#[derive(Clone)]
struct Unreached {
    number: u64,
    name: String,
    image: Image,
    /// True if `LD_PRELOAD` did not name the tllmprof library when the process started. False if it did, or if the
    /// process's variables could not be read.
    has_lost_preload: bool,
}

/// The processes of the program that were found by searches so far.
#[derive(Default)]
struct Processes {
    /// The running processes, by process id. The flag is true if the library is loaded in the process.
    running: HashMap<u64, (Image, bool)>,
    unreached: Vec<Unreached>,
}

impl Processes {
    /// Examines all descendants of the command, and the processes that an earlier search found and that still run.
    /// Processes below another `tllmprof run` are left out, because the other `tllmprof run` watches them.
    fn look(&mut self, command: u64, library: &Path) {
        let all: HashMap<_, _> = process_numbers()
            .filter_map(|number| Some((number, ProcessSummary::read(number)?)))
            .collect();
        let started = |number| all.get(&number).map(|status| status.image.started);
        let mut ours: HashSet<u64> = self.running.keys().copied().collect();
        ours.retain(|number| started(*number) == Some(self.running[number].0.started));
        loop {
            let before = ours.len();
            let is_child =
                |status: &ProcessSummary| ours.contains(&status.parent) || status.parent == command;
            let children = all
                .iter()
                .filter(|(_, status)| is_child(status) && !is_ours(&status.name));
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

    fn examine(&mut self, number: u64, status: &ProcessSummary, library: &[u8]) -> Mapped {
        let Ok(maps) = fs::read(format!("/proc/{number}/maps")) else {
            return Mapped::Neither;
        };
        let mapped = Mapped::parse(&maps, library);
        let is_it = |known: &Unreached| known.number == number && known.image == status.image;
        let is_known = self.unreached.iter().any(is_it);
        match mapped {
            // The library was attached to the process after an earlier search, so the process is removed from the
            // list.
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

/// Returns true if the process was started without the library in `LD_PRELOAD`. Returns false if that cannot be
/// determined.
fn has_lost_preload(number: u64, library: &[u8]) -> bool {
    let Ok(variables) = read_variables(number) else {
        return false;
    };
    let mut entries = variables.split(|byte| *byte == 0);
    let preload = entries.find_map(|entry| entry.strip_prefix(b"LD_PRELOAD="));
    let mut paths = preload
        .unwrap_or_default()
        .split(|byte| b" :".contains(byte));
    !paths.any(|path| path.rsplit(|byte| *byte == b'/').next() == Some(library))
}

/// A thread that searches for processes of the program without the tllmprof library. It ends when this value is
/// dropped.
pub(crate) struct ProgramWatch {
    /// The processes without the library that the thread has found so far.
    found: Arc<Mutex<Vec<Unreached>>>,
    _runs: Sender<()>,
}

impl ProgramWatch {
    /// Starts the search thread. Returns `None` if the thread cannot be started. The caller has blocked all signals, so
    /// the new thread receives no signals.
    pub(crate) fn start(library: PathBuf) -> Option<Self> {
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
                // The lock is held only while the result is copied. It is not held during a search, which may take
                // long.
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

    /// Ends the search thread. Returns the message about the processes that were found, or `None` if none were found.
    pub(crate) fn finish(self) -> Option<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> = found.iter().map(|one| (one.clone(), one.runs())).collect();
        found.sort_by_key(|(one, _)| one.number);
        (!found.is_empty()).then(|| UnreachedMessage(&found).to_string())
    }
}

impl Unreached {
    fn runs(&self) -> bool {
        ProcessSummary::read(self.number).is_some_and(|now| now.image == self.image)
    }
}

/// The message about processes that loaded the CUDA driver without the library. The flag of each process is true if
/// that process is still running.
struct UnreachedMessage<'a>(&'a [(Unreached, bool)]);

impl fmt::Display for UnreachedMessage<'_> {
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
        let parse = |stat: &str| ProcessSummary::new(ProcessStatus::parse(stat)?);
        let status = parse(&format!("7 (a) b (c)) S {}\n", fields.join(" ")));
        let image = Image {
            started: 22,
            places: [28, 50],
        };
        assert_eq!(
            status,
            Some(ProcessSummary {
                name: "a) b (c)".to_owned(),
                parent: 4,
                image
            })
        );
        assert_eq!(parse("7 (a) S 4 5\n"), None);
        let own = ProcessSummary::read(u64::from(std::process::id())).unwrap();
        assert!(own.image.places.iter().all(|place| *place > 0), "{own:?}");
    }

    #[test]
    fn the_sampler_of_gpus_is_no_process_of_the_program() {
        assert!(is_ours("tllmprof") && is_ours("gpu-sampler"));
        assert!(!is_ours("python3") && !is_ours("gpu-samplers"));
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
