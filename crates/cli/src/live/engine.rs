//! Finds the processes that drive a GPU, and groups them by engine. Only `/proc` is read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use tllmprof_config::printable;

use crate::beyond;
use crate::driver_user::has_driver;
use crate::failure::usage;
use crate::output;
use crate::process_status::ProcessStatus;

/// Duration of the measurement of how much processor time each process uses.
const MEASURED: Duration = Duration::from_millis(300);
/// The minimum processor time, in clock ticks during [`MEASURED`], for which a process counts as busy. A thread that
/// never waits uses 30 ticks, because a tick is usually 10 ms.
const BUSY: u64 = 5;

/// Names of programs that start unrelated programs, such as shells. If the common ancestor of two processes is such a
/// program, the processes need not belong to one engine. Long names are cut to the length to which the kernel cuts
/// them.
const STARTERS: [&str; 30] = [
    "systemd",
    "init",
    "sh",
    "bash",
    "dash",
    "ash",
    "zsh",
    "fish",
    "ksh",
    "busybox",
    "tmux: server",
    "screen",
    "sshd",
    "sshd-session",
    "sudo",
    "su",
    "login",
    "cron",
    "containerd-shim",
    "dockerd",
    "docker-init",
    "tini",
    "dumb-init",
    "conmon",
    "runc",
    "crun",
    "s6-svscan",
    "s6-supervise",
    "runsv",
    "supervisord",
];

/// The parent, the name, the state and the processor time of a process, from its `stat` file.
#[derive(Clone, Debug)]
struct One {
    parent: u64,
    name: String,
    state: char,
    /// Processor time since the process started, in clock ticks.
    ticks: u64,
}

impl One {
    fn new(status: ProcessStatus) -> Option<Self> {
        Some(Self {
            state: status.state()?,
            parent: status.parent()?,
            // Fields 14 and 15 of the `stat` file are the user and system time.
            ticks: status.field::<u64>(14)? + status.field::<u64>(15)?,
            name: status.name,
        })
    }

    fn read(pid: u64) -> Option<Self> {
        Self::new(ProcessStatus::read(pid)?)
    }
}

/// A process that has mapped the CUDA driver, and its use of GPUs and of the processor.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub pid: u64,
    title: String,
    /// The numbers of the GPUs whose device files the process has open.
    gpus: Vec<u32>,
    ticks: u64,
    /// Processor time that the process used during [`MEASURED`], in clock ticks. It is not part of `ticks`, which was
    /// read before.
    lately: u64,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.pid, printable(&self.title))?;
        let numbers: Vec<_> = self.gpus.iter().map(u32::to_string).collect();
        match numbers.as_slice() {
            [] => {}
            [one] => write!(f, ", GPU {one}")?,
            all => write!(f, ", GPUs {}", all.join(" "))?,
        }
        f.write_str(")")
    }
}

/// All processes that `/proc` shows, by process id.
struct Processes(BTreeMap<u64, One>);

impl Processes {
    /// Reads all processes.
    ///
    /// # Errors
    /// One of `tops`, the processes that the user named, does not exist.
    fn read(tops: &[u64]) -> Result<Self> {
        let all = beyond::numbers().filter_map(|pid| Some((pid, One::read(pid)?)));
        let all: BTreeMap<_, _> = all.collect();
        match tops.iter().find(|pid| !all.contains_key(pid)) {
            Some(pid) => bail!("--engine {pid}: there is no such process here"),
            None => Ok(Self(all)),
        }
    }

    /// Returns the ids of a process and all its ancestors. The process itself comes first.
    fn line(&self, pid: u64) -> impl Iterator<Item = u64> + '_ {
        std::iter::successors(Some(pid), |pid| {
            let parent = self.0.get(pid)?.parent;
            self.0.contains_key(&parent).then_some(parent)
        })
    }

    fn is_below(&self, pid: u64, tops: &[u64]) -> bool {
        tops.is_empty() || self.line(pid).any(|one| tops.contains(&one))
    }

    /// Returns the process that started the engine to which `pid` belongs: the highest ancestor of `pid` below the
    /// nearest ancestor that is a program of [`STARTERS`]. If there is no such process, returns `pid` itself.
    fn top(&self, pid: u64) -> u64 {
        let is_starter = |pid: &u64| {
            let one = self.0.get(pid);
            one.is_some_and(|one| STARTERS.contains(&one.name.as_str()))
        };
        // The process itself is not compared with `STARTERS`, because an engine's process may also be called `sh`.
        let above = self.line(pid).skip(1).take_while(|pid| !is_starter(pid));
        above.last().unwrap_or(pid)
    }

    /// Groups processes by engine, and returns the processes of the only engine. `choose` selects the processes of an
    /// engine that drive the GPU.
    ///
    /// # Errors
    /// There are several engines, and the user named no process in `tops` to choose one.
    fn engines(
        &self,
        drivers: Vec<Driver>,
        tops: &[u64],
        choose: fn(Vec<Driver>) -> Vec<Driver>,
    ) -> Result<Vec<Driver>> {
        let mut engines: BTreeMap<u64, Vec<Driver>> = BTreeMap::new();
        for driver in drivers {
            // If the user named processes, they and all of their descendants count as one engine.
            let top = if tops.is_empty() {
                self.top(driver.pid)
            } else {
                0
            };
            engines.entry(top).or_default().push(driver);
        }
        let engines: Vec<_> = engines.into_values().map(choose).collect();
        if engines.len() > 1 {
            for driver in engines.iter().flatten() {
                output::say(format_args!("--engine: {driver}"));
            }
            return Err(usage(format_args!(
                "--engine: {} engines run here (wanted: --engine PID, of one of these processes or of the one that has \
                 started it)",
                engines.len()
            )));
        }
        Ok(engines.into_iter().flatten().collect())
    }
}

/// Selects the processes of one engine that drive the GPU. These processes are recognized by the titles that engines
/// give to them. If no process has such a title, selects each process that uses at least half as much processor time as
/// the busiest one. The processor time during [`MEASURED`] is compared. If no process is busy then, the time since each
/// process started is compared.
fn chosen(all: Vec<Driver>) -> Vec<Driver> {
    let titles: Vec<_> = all.iter().map(|driver| driver.title.as_str()).collect();
    let named = tllmprof_engines::drivers(&titles);
    if !named.is_empty() {
        return named.into_iter().map(|index| all[index].clone()).collect();
    }
    let most = |of: fn(&Driver) -> u64| all.iter().map(of).max().unwrap_or(0);
    let (lately, ever) = (most(|driver| driver.lately), most(|driver| driver.ticks));
    let works = |driver: &Driver| match lately >= BUSY {
        true => driver.lately * 2 >= lately,
        false => driver.ticks * 2 >= ever,
    };
    all.iter().filter(|driver| works(driver)).cloned().collect()
}

fn title(pid: u64, one: &One) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    // Some programs replace their arguments by a title, which is shown unchanged. If the first argument is a path, the
    // last part of the path is shown.
    let shown = match first.starts_with('/') {
        true => first.rsplit('/').next().unwrap_or_default(),
        false => first.trim(),
    };
    match shown {
        "" => one.name.clone(),
        shown => shown.to_owned(),
    }
}

/// Returns the numbers of the GPUs whose device files a process has open.
fn gpus(pid: u64) -> Vec<u32> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let links = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut numbers: Vec<u32> = links
        .filter_map(|path| path.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Returns the processes of this machine's only engine that drive GPUs. With `tops`, only these processes and their
/// descendants are searched.
///
/// # Errors
/// One of `tops` does not exist, no process drives a GPU, or there are several engines and it is not clear which one is
/// meant.
pub(crate) fn find(tops: &[u64]) -> Result<Vec<Driver>> {
    let processes = Processes::read(tops)?;
    let own = u64::from(std::process::id());
    let mut drivers: Vec<_> = processes
        .0
        .iter()
        .filter(|(pid, one)| **pid != own && !"ZXTt".contains(one.state))
        .filter(|(pid, _)| processes.is_below(**pid, tops) && has_driver(**pid))
        .map(|(pid, one)| Driver {
            pid: *pid,
            title: title(*pid, one),
            gpus: gpus(*pid),
            ticks: one.ticks,
            lately: 0,
        })
        .collect();
    // If no process has an NVIDIA device open, the driver reaches the GPU in another way (as in WSL), so no process is
    // left out.
    if drivers.iter().any(|driver| !driver.gpus.is_empty()) {
        drivers.retain(|driver| !driver.gpus.is_empty());
    }
    if drivers.is_empty() {
        let among = match tops {
            [] => "no process that this user may trace".to_owned(),
            tops => format!("{}: neither this process nor a descendant", numbers(tops)),
        };
        bail!("--engine: {among} has loaded the driver (libcuda.so) and a GPU open");
    }
    thread::sleep(MEASURED);
    for driver in &mut drivers {
        let now = One::read(driver.pid).map_or(0, |one| one.ticks);
        driver.lately = now.saturating_sub(driver.ticks);
    }
    processes.engines(drivers, tops, chosen)
}

/// Returns the processes in `all` that belong to the only engine. With `tops`, only these processes and their
/// descendants count.
///
/// # Errors
/// One of `tops` does not exist, or there are several engines and it is not clear which one is meant.
pub(crate) fn among(all: &[u64], tops: &[u64]) -> Result<Vec<u64>> {
    let processes = Processes::read(tops)?;
    let all = all.iter().filter(|pid| processes.is_below(**pid, tops));
    let driver = |pid: u64| {
        Some(Driver {
            pid,
            title: title(pid, processes.0.get(&pid)?),
            gpus: gpus(pid),
            ticks: 0,
            lately: 0,
        })
    };
    let drivers = all.filter_map(|pid| driver(*pid)).collect();
    let drivers = processes.engines(drivers, tops, |all| all)?;
    Ok(drivers.iter().map(|driver| driver.pid).collect())
}

fn numbers(all: &[u64]) -> String {
    let all: Vec<_> = all.iter().map(u64::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(pid: u64, title: &str, ticks: u64, lately: u64) -> Driver {
        Driver {
            pid,
            title: title.to_owned(),
            gpus: vec![0],
            ticks,
            lately,
        }
    }

    fn pids(all: &[Driver]) -> Vec<u64> {
        all.iter().map(|driver| driver.pid).collect()
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194560 100 0 0 0 40 2 0 0 20 0 1 0 5 1 2 3";
        let parse = |stat| One::new(ProcessStatus::parse(stat)?);
        let one = parse(stat).unwrap();
        assert_eq!((one.parent, one.state, one.ticks), (3, 'S', 42));
        assert_eq!(one.name, "a) b (c");
        assert!(One::read(std::process::id().into()).is_some());
        assert!(parse("").is_none());
    }

    #[test]
    fn names_come_before_times_and_lately_before_ever() {
        let api = driver(1, "vllm", 9000, 30);
        let engine = driver(2, "VLLM::EngineCore", 10, 0);
        assert_eq!(pids(&chosen(vec![api.clone(), engine])), [2]);
        let (a, b) = (driver(2, "python3", 10, 29), driver(3, "python3", 10, 16));
        let idle = driver(4, "python3", 90_000, 2);
        assert_eq!(pids(&chosen(vec![a, b, idle.clone()])), [2, 3]);
        let rested = driver(5, "python3", 10, 0);
        assert_eq!(pids(&chosen(vec![rested, idle])), [4]);
    }

    #[test]
    fn programs_of_a_shell_are_not_of_one_engine() {
        let one = |parent, name: &str| One {
            parent,
            name: name.to_owned(),
            state: 'S',
            ticks: 0,
        };
        let all = [
            (1, one(0, "systemd")),
            (2, one(1, "bash")),
            (3, one(2, "vllm")),
            (4, one(3, "VLLM::EngineCor")),
            (5, one(3, "VLLM::EngineCor")),
            (6, one(2, "python3")),
        ];
        let processes = Processes(all.into_iter().collect());
        assert_eq!([4, 5, 6, 3].map(|pid| processes.top(pid)), [3, 3, 6, 3]);
        assert!(processes.is_below(5, &[2]) && !processes.is_below(6, &[3]));
        let drivers = || vec![driver(4, "a", 1, 0), driver(6, "b", 1, 0)];
        let refused = processes.engines(drivers(), &[], chosen).unwrap_err();
        assert!(refused.to_string().contains("2 engines"), "{refused}");
        assert_eq!(processes.engines(drivers(), &[2], chosen).unwrap().len(), 2);
    }

    #[test]
    fn a_driver_is_shown_with_its_gpus() {
        let mut one = driver(7, "VLLM::Worker_TP0", 0, 0);
        assert_eq!(one.to_string(), "7 (VLLM::Worker_TP0, GPU 0)");
        one.gpus = vec![0, 3];
        assert_eq!(one.to_string(), "7 (VLLM::Worker_TP0, GPUs 0 3)");
        one.gpus.clear();
        assert_eq!(one.to_string(), "7 (VLLM::Worker_TP0)");
    }
}
