//! `tllmprof hang`: finds out which rank blocks the other ranks, in which collective, and in which function.

mod behind;
mod calls;
mod cause;
mod device_fault;
mod find;
mod judge;
mod mismatch;
mod process;
mod python;
mod state;
mod symbols;
#[cfg(test)]
mod tests;
mod text;
mod verdict;
mod watch;
mod wording;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};
use tllmprof_record::Ring;

use crate::failure::usage;
use crate::output;
use find::ProcessRing;
use process::CpuTimes;
use state::{Life, RankState};
use symbols::Symbols;
use verdict::{Answer, VerdictKind};
pub(crate) use watch::StuckWatch;

/// Time between the two readings of each process's threads and of its ring file, which holds the latest steps and
/// collectives. Ranks are not stuck if a step or collective begins or ends in this time.
const BETWEEN: Duration = Duration::from_secs(1);
/// Time between the two readings in [`stuck_times`]. It is short because at least one ring file has already been
/// unchanged for [`judge::LEAST_QUIET_NS`]. So the readings mainly have to show if threads use the processor.
const BETWEEN_IF_QUIET: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 not stuck, 3 stuck, 4 too little is known, 1 and 2 as with other commands."
)]
pub(crate) struct HangArguments {
    /// Process IDs, ring files (see run --ring), or a folder of ring files [default: the processes of the only run]
    #[arg(value_name = "PID", conflicts_with_all = ["run", "all"])]
    targets: Vec<String>,
    /// Examine the processes of this run, and the ring files that the run left in its folder here
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    run: Option<String>,
    /// Examine all processes on this machine that write a ring file
    #[arg(long)]
    all: bool,
    /// Read device faults (Xid) from this copy of the kernel log, as dmesg prints it [default: the kernel's own]
    #[arg(long, value_name = "FILE")]
    kernel_log: Option<PathBuf>,
    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &HangArguments) -> Result<ExitCode> {
    let mut found = arguments.find()?;
    let mut ranks = examine(&mut found, BETWEEN);
    let searched = find_faults(&mut ranks, arguments.kernel_log.as_deref());
    let unread = match searched {
        Err(error) if arguments.kernel_log.is_some() => return Err(error),
        searched => searched.err(),
    };
    let verdict = judge::judge(&ranks);
    if let Some(error) = unread.filter(|_| verdict.kind == VerdictKind::Gpu) {
        output::say(format_args!(
            "device faults (Xid) are not known: {} (wanted: root, CAP_SYSLOG, or --kernel-log FILE)",
            crate::failure::worded(&format!("{error:#}"))
        ));
    }
    match arguments.json {
        true => {
            output::print(format!("{}\n", output::json(&text::json(&verdict, &ranks))).as_bytes())?
        }
        false => output::text(&text::text(&verdict, &ranks))?,
    }
    Ok(ExitCode::from(match verdict.answer {
        Answer::NotStuck => 0,
        Answer::Stuck => 3,
        Answer::CannotTell => 4,
    }))
}

/// Returns the states of the processes in `found`, which are read as [`read_twice`] describes. If ranks are stuck
/// according to these states, and a process still runs, the states are read once more.
fn examine(found: &mut [ProcessRing], between: Duration) -> Vec<RankState> {
    confirm(|| read_twice(found, between))
}

/// Returns the result of `read`. If ranks are stuck according to this result, and a process still runs, calls `read`
/// once more and returns the new result. A second call is necessary because the ranks are not all read at the same
/// moment. If a long wait of all ranks ends while they are read, the first ranks still seem to wait, but the last ranks
/// are already in their next step. The second call then shows that all ranks have made progress.
fn confirm(mut read: impl FnMut() -> Vec<RankState>) -> Vec<RankState> {
    let ranks = read();
    let is_stuck = judge::judge_apart(&ranks).any(|(_, verdict)| verdict.answer == Answer::Stuck);
    match is_stuck && ranks.iter().any(|rank| rank.life == Life::Runs) {
        true => read(),
        false => ranks,
    }
}

/// Reads the states of the processes in `found` twice, at an interval of `between`. Returns the states from the second
/// reading. Each state also contains the results of the first reading, so that changes between the readings can be
/// seen.
fn read_twice(found: &mut [ProcessRing], between: Duration) -> Vec<RankState> {
    found.sort_by_key(|one| (one.ring.run.clone(), one.ring.rank, one.ring.pid));
    let before: Vec<_> = found
        .iter()
        .map(|one| one.pid.map(FirstReading::take))
        .collect();
    if found
        .iter()
        .any(|one| one.pid.is_some() || is_elsewhere(&one.ring) || !has_gone(&one.ring))
    {
        thread::sleep(between);
    }
    let symbols = Symbols::default();
    let mut ranks: Vec<_> = thread::scope(|scope| {
        let symbols = &symbols;
        let all: Vec<_> = found
            .iter()
            .zip(&before)
            .map(|(found, before)| scope.spawn(move || look(found, before.as_ref(), symbols)))
            .collect();
        all.into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    ranks.sort_by_key(|rank| (rank.ring.run.clone(), rank.number(), rank.pid));
    ranks
}

/// Reads the states of the processes like [`examine`]. Adds the device faults from the kernel log, if this process may
/// read it.
fn examine_with_faults(found: &mut [ProcessRing], between: Duration) -> Vec<RankState> {
    let mut ranks = examine(found, between);
    // An error is ignored: if this process may not read the kernel log, the verdict does not consider device faults.
    let _ = find_faults(&mut ranks, None);
    ranks
}

/// Finds the device faults that may have stopped the ranks, in the kernel log or in the file `copy`. Stores each fault
/// in the state of its rank.
///
/// # Errors
/// The log cannot be read.
fn find_faults(ranks: &mut [RankState], copy: Option<&Path>) -> Result<()> {
    let faults = device_fault::read(copy)?;
    ranks.iter_mut().for_each(|rank| rank.find_fault(&faults));
    Ok(())
}

/// Returns for each process, by its id, the time in nanoseconds for which it has been stuck: the time since a step or
/// collective last began or ended. The time is 0 if `tllmprof hang` does not call the process stuck. Processes without
/// a ring file, which contains these steps and collectives, are left out.
pub(crate) fn stuck_times(pids: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut found: Vec<_> = pids.filter_map(|pid| find::of_process(pid).ok()).collect();
    let numbers = found.iter().filter_map(|one| one.pid);
    let mut times: BTreeMap<u64, u64> = numbers.map(|pid| (pid, 0)).collect();
    if found
        .iter()
        .all(|one| quiet(&one.ring) < judge::LEAST_QUIET_NS)
    {
        return times;
    }
    find::add_others(&mut found);
    let ranks = examine_with_faults(&mut found, BETWEEN_IF_QUIET);
    let stuck = judge::judge_apart(&ranks).filter(|(_, verdict)| verdict.answer == Answer::Stuck);
    for rank in stuck.flat_map(|(part, _)| part).map(|index| &ranks[index]) {
        if let Some(time) = times.get_mut(&u64::from(rank.pid)) {
            *time = rank.quiet_ns.unwrap_or(0);
        }
    }
    times
}

impl HangArguments {
    /// Finds the ring files that the arguments of the command select.
    ///
    /// # Errors
    /// No ring file was found, or the files belong to several runs and the arguments do not say which run is meant.
    fn find(&self) -> Result<Vec<ProcessRing>> {
        if !self.targets.is_empty() {
            return self.find_named();
        }
        let mut found = find::running();
        if let Some(run) = &self.run {
            found.retain(|one| one.ring.run == *run);
            let folder = format!("tllmprof-{run}");
            if Path::new(&folder).is_dir() {
                let added = find::add_files(Path::new(&folder), &mut found);
                // An error is ignored if other ring files (files with the latest steps and collectives of a process)
                // were found: the folder may contain no readable ring file, because the processes of the run have their
                // ring files elsewhere.
                added.or_else(|error| if found.is_empty() { Err(error) } else { Ok(()) })?;
            }
            if found.is_empty() {
                bail!(
                    "--run {run}: no process of that run has a ring, and there is no folder {folder} here (tllmprof run \
                     makes both)"
                );
            }
        } else if found.is_empty() {
            bail!(
                "no process here has a ring: one does that was started by tllmprof run, or with TLLMPROF_RING=PATH, and \
                 makes steps or communicators (a run's folder names one that has ended)"
            );
        } else if !self.all && found.iter().any(|one| one.ring.run != found[0].ring.run) {
            let names: Vec<_> = found
                .iter()
                .filter_map(|one| Some(one.pid?.to_string()))
                .collect();
            return Err(usage(format_args!(
                "several runs have rings here, with the processes {} (wanted: their numbers, --run ID or --all)",
                names.join(", ")
            )));
        }
        find::add_others(&mut found);
        Ok(found)
    }

    /// Reads the ring files (latest steps and collectives of processes) that the user named. Files that cannot be used
    /// are reported and left out.
    ///
    /// # Errors
    /// None of the named ring files can be used.
    fn find_named(&self) -> Result<Vec<ProcessRing>> {
        let mut found: Vec<ProcessRing> = Vec::new();
        for target in &self.targets {
            let added = match target.parse::<u64>() {
                Ok(pid) if found.iter().any(|one| one.pid == Some(pid)) => {
                    Err(usage(format_args!("{pid} is given twice")))
                }
                Ok(pid) => find::of_process(pid).map(|one| find::add_once(one, &mut found)),
                Err(_) => find::add_files(Path::new(target), &mut found),
            };
            match added {
                Err(error) if self.targets.len() == 1 => return Err(error),
                Err(error) => output::say(format_args!("{error:#}")),
                Ok(()) => {}
            }
        }
        let Some(first) = found.first() else {
            bail!("none of these has a ring");
        };
        if let Some(other) = found.iter().find(|one| one.ring.run != first.ring.run) {
            output::say(format_args!(
                "process {} is of another run than process {}: they are judged apart where they share no communicator",
                other.ring.pid, first.ring.pid
            ));
        }
        find_processes(&mut found);
        Ok(found)
    }
}

/// Finds the running processes that write the ring files which the user named, and stores their process ids in `found`.
fn find_processes(found: &mut [ProcessRing]) {
    if found.iter().all(|one| one.pid.is_some()) {
        return;
    }
    let running = find::running();
    for one in found.iter_mut().filter(|one| one.pid.is_none()) {
        let path = one.path.canonicalize().ok();
        let is_it = |other: &&ProcessRing| path.is_some() && other.path.canonicalize().ok() == path;
        one.pid = running.iter().find(is_it).and_then(|other| other.pid);
    }
}

/// Returns the identifier of the current boot of this machine. It is empty if the kernel does not report one.
fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.unwrap_or_default().trim().to_owned()
}

fn is_elsewhere(ring: &Ring) -> bool {
    ring.boot != boot()
}

/// Returns true if the process that wrote this ring file is known to have ended. The ring file must be of this machine
/// and boot. The ring file itself may say that the process has ended. Otherwise the process id in the file is looked
/// up, but only if the file also names this host: containers have process ids of their own.
fn has_gone(ring: &Ring) -> bool {
    let pid = u64::from(ring.pid);
    let is_of_this_host = || rustix::system::uname().nodename().to_bytes() == ring.host.as_bytes();
    // A process that was started after the ring file was begun is another one, with the same process id.
    let is_other = || {
        let age = process::age_ns(pid);
        age.is_some_and(|age| age < monotonic_ns().saturating_sub(ring.begin_ns))
    };
    ring.has_ended || is_of_this_host() && (process::state(pid).is_none() || is_other())
}

/// The first of the two readings of a process that [`read_twice`] makes.
struct FirstReading {
    times: CpuTimes,
    /// The letter of the process's state, as in proc(5).
    state: Option<char>,
}

impl FirstReading {
    /// Reads the process now.
    fn take(pid: u64) -> Self {
        Self {
            times: process::times(pid),
            state: process::state(pid),
        }
    }

    /// Returns true if a debugger or tracer has held the process since this reading. `state` is the letter of the
    /// process's state now. A tracer such as `strace` stops a process often, but only briefly. So the process counts as
    /// held only if its main thread has also used no processor time.
    fn is_held(&self, pid: u64, state: char) -> bool {
        let main = u32::try_from(pid).unwrap_or(0);
        self.state == Some('t')
            && state == 't'
            && self.times.get(&main) == process::times(pid).get(&main)
    }
}

/// Reads the state of a process, and reads its ring file (its latest steps and collectives) again. `before` is the
/// first reading of the process by [`read_twice`].
fn look(found: &ProcessRing, before: Option<&FirstReading>, symbols: &Symbols) -> RankState {
    let ring = found.again();
    let is_here = ring.boot == boot();
    let state = found.pid.and_then(|pid| Some((pid, process::state(pid)?)));
    let life = match (state, before) {
        (Some((_, 'T')), _) => Life::Stopped,
        (Some((pid, state)), Some(before)) if before.is_held(pid, state) => Life::Held,
        (Some(_), _) => Life::Runs,
        (None, _) if is_here && (found.pid.is_some() || has_gone(&ring)) => Life::Gone,
        (None, _) => Life::Elsewhere,
    };
    let tracer = found.pid.filter(|_| life == Life::Held);
    let tracer = tracer.and_then(process::tracer);
    let pid = found.pid.and_then(|pid| u32::try_from(pid).ok());
    let mut rank = RankState {
        pid: pid.unwrap_or(ring.pid),
        life,
        tracer,
        before: found.ring.clone(),
        quiet_ns: is_here.then(|| quiet(&ring)),
        ring,
        threads: Vec::new(),
        gil_holder: None,
        fault: None,
    };
    if let (Some(pid), Some(before)) = (found.pid.filter(|_| life == Life::Runs), before)
        && let Err(why) = process::look(pid, &before.times, symbols, &mut rank)
    {
        output::say(format_args!(
            "{pid}: its stacks cannot be read: {} (wanted: root, or CAP_SYS_PTRACE)",
            crate::failure::worded(&why)
        ));
    }
    rank
}

/// Returns the time since the latest step or collective in a process's ring file began or ended, in nanoseconds.
fn quiet(ring: &Ring) -> u64 {
    monotonic_ns().saturating_sub(latest(ring))
}

/// Returns the time of `CLOCK_MONOTONIC`, in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the time at which the latest step or collective in a process's ring file began or ended, in nanoseconds of
/// `CLOCK_MONOTONIC`. If there is none, returns the ring file's begin time.
fn latest(ring: &Ring) -> u64 {
    let steps = ring.steps.iter().map(|step| (step.begin_ns, step.end_ns));
    let calls = ring
        .collectives
        .iter()
        .map(|call| (call.begin_ns, call.end_ns));
    let times = steps.chain(calls).map(|(begin, end)| end.unwrap_or(begin));
    times.max().unwrap_or(ring.begin_ns)
}
