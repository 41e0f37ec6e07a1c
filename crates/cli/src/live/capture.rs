//! `tllmprof capture`: the next steps of processes that run, the same ones in all that are in lockstep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tllmprof_config::Condition;
use tllmprof_control::{Capture, Event, Request, STEPS, Status};
use tllmprof_export::Output;
use tllmprof_report::{Process as Read, Report};

use super::connection::{Connection, Writer};
use super::lockstep::{Plan, Sample};
use super::sockets::Process;
use super::targets::Targets;
use crate::chosen::Chosen;
use crate::failure::{usage, worded};
use crate::page::{self, Measured};
use crate::progress::Progress;
use crate::{output, processes};

/// How long steps are counted, to know how fast they are.
const BETWEEN: Duration = Duration::from_millis(150);
/// How often a step is chosen that some have reached before all have confirmed.
const TRIES: u32 = 6;
/// How often processes are asked how far they are.
const ASK: Duration = Duration::from_millis(500);
/// How long a process may take to close a window that was stopped.
const CLOSING: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
#[command(after_help = "\
Processes in lockstep, as the ranks of one engine, are captured in the same iterations; one that is not, as an idle \
replica, in its own. ^C closes the windows early; the processes go on.

  tllmprof capture                  the next 50 iterations of the only process or run here
  tllmprof capture 4711 --steps 200 --html page.html
  tllmprof capture --all --for 10s -o captures/")]
pub struct Arguments {
    #[command(flatten)]
    targets: Targets,
    /// Iterations to capture [default: 50, or with --for as many as come]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Iterations to let pass before
    #[arg(long, value_name = "N", default_value_t = 0)]
    delay: u64,
    /// How long to capture: 10s, 500ms or 2m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Count only iterations whose batches fulfil this, as with tllmprof run --where
    #[arg(long = "where", value_name = "EXPR")]
    condition: Option<String>,
    /// Take GPU kernels in the first 20 or N iterations; the process must have been started with --kernels
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "20")]
    kernels: Option<u64>,
    /// Require garbage collections in the record
    #[arg(long)]
    gc: bool,
    /// Require what threads do about the GIL in the record
    #[arg(long)]
    gil: bool,
    /// Require sampled stacks in the record
    #[arg(long)]
    stacks: bool,
    /// Give up when no iteration has begun for this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    wait: Duration,
    /// Copy the records here, one for each process and capture
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write a page of HTML, with timelines
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Replace the page that is there
    #[arg(long, requires = "html")]
    force: bool,
}

/// A time with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let wanted = "wanted: a time such as 10s, 500ms or 2m";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wanted.to_owned()),
    };
    let number = digits.parse::<f64>().ok().filter(|number| *number > 0.0);
    number
        .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
        .ok_or_else(|| wanted.to_owned())
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(text) = &arguments.condition
        && let Err(problem) = Condition::parse(text)
    {
        let (problem, wanted) = (problem.problem, problem.wanted);
        return Err(usage(format_args!(
            "--where {text:?}: {problem} (wanted: {wanted})"
        )));
    }
    let page = match &arguments.html {
        Some(out) => {
            let target = Output::new(out, arguments.force);
            Some((out, target.with_context(|| out.display().to_string())?))
        }
        None => None,
    };
    let interrupts = interrupts()?;
    let processes = arguments.targets.find()?;
    let members = begin(processes, arguments)?;
    let (captured, failed) = follow(members, arguments, &interrupts)?;
    let read = read(&captured, arguments)?;
    if read.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let measured = Measured::of(&read);
    let report = Report::new(read);
    output::print(report.text().as_bytes())?;
    if let Some((out, target)) = page {
        let out = out.display();
        page::write(&report, &measured, target, true).with_context(|| out.to_string())?;
        output::say(format_args!("the page is {out}"));
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// How often the user has had enough.
fn interrupts() -> Result<Arc<AtomicUsize>> {
    let count = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let count = Arc::clone(&count);
        let act = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        // SAFETY: an atomic addition is all that it does.
        unsafe { signal_hook::low_level::register(signal, act)? };
    }
    Ok(count)
}

/// A process whose window was accepted.
struct Member {
    connection: Connection,
    status: Status,
    first: u64,
    last: Option<u64>,
}

impl Arguments {
    fn request(&self, first: Option<u64>) -> Request {
        Request::Capture(Capture {
            steps: self
                .steps
                .or_else(|| self.duration.is_none().then_some(STEPS)),
            duration: self.duration,
            first,
            delay: first
                .is_none()
                .then_some(self.delay)
                .filter(|delay| *delay > 0),
            condition: self.condition.clone(),
            kernels: self.kernels,
            gc: self.gc,
            gil: self.gil,
            stacks: self.stacks,
            past: false,
        })
    }
}

/// Reads all counts.
fn sample(processes: &mut [Process]) -> Result<Sample> {
    let since = Instant::now();
    for process in processes.iter_mut() {
        let _ = process.connection.ask(&Request::Status);
    }
    let mut counts = Vec::new();
    for process in processes.iter_mut() {
        let event = process.connection.next();
        match event {
            Ok(Event::Status(status)) => counts.push(*status),
            Ok(_) => bail!(
                "{}: it answers something else than it was asked",
                process.status.pid
            ),
            Err(error) => bail!(
                "{}: it does not answer: {}",
                process.status.pid,
                worded(&error.to_string())
            ),
        }
    }
    Ok(Sample {
        counts,
        took: since.elapsed(),
    })
}

/// Has windows accepted in all processes: with the same iteration in those in lockstep.
fn begin(mut processes: Vec<Process>, arguments: &Arguments) -> Result<Vec<Member>> {
    let mut before = sample(&mut processes)?;
    for attempt in 1..=TRIES {
        let is_one = processes.len() == 1;
        if !is_one {
            thread::sleep(BETWEEN);
        }
        let now = sample(&mut processes)?;
        let plan = Plan::new(&before, &now, 1 << attempt);
        before = now;
        // One alone takes the next.
        let first = plan.first.saturating_add(arguments.delay);
        let first_of = |is_member: &bool| (*is_member && !is_one).then_some(first);
        let firsts: Vec<_> = plan.members.iter().map(first_of).collect();
        for (process, first) in processes.iter_mut().zip(&firsts) {
            // What becomes of it shows where it is to answer.
            let _ = process.connection.ask(&arguments.request(*first));
        }
        let answers: Vec<_> = processes
            .iter_mut()
            .map(|process| process.connection.next())
            .collect();
        if answers
            .iter()
            .all(|answer| matches!(answer, Ok(Event::Accepted { .. })))
        {
            return Ok(accepted(processes, answers, &plan, is_one));
        }
        let mut refusals = Vec::new();
        let mut is_late = false;
        for (process, answer) in processes.iter_mut().zip(answers) {
            let pid = process.status.pid;
            match answer {
                Ok(Event::Accepted { .. }) => {
                    process.connection.ask(&Request::Stop)?;
                    process.connection.wait_for(Some(CLOSING))?;
                    while !matches!(process.connection.next()?, Event::Closed(_)) {}
                }
                Ok(Event::Refused { next: Some(_), .. }) if attempt < TRIES => is_late = true,
                Ok(Event::Refused { why, .. }) => refusals.push(format!("{pid}: {why}")),
                Ok(_) => refusals.push(format!(
                    "{pid}: it answers something else than it was asked"
                )),
                Err(error) => refusals.push(format!(
                    "{pid}: it does not answer: {}",
                    worded(&error.to_string())
                )),
            }
        }
        if let Some((last, others)) = refusals.split_last() {
            others
                .iter()
                .for_each(|refusal| output::say(format_args!("{refusal}")));
            bail!("{last}");
        }
        debug_assert!(is_late);
    }
    bail!("the processes are too fast for an iteration to be agreed on")
}

fn accepted(
    processes: Vec<Process>,
    answers: Vec<io::Result<Event>>,
    plan: &Plan,
    is_one: bool,
) -> Vec<Member> {
    let mut members = Vec::new();
    for ((process, answer), in_lockstep) in processes.into_iter().zip(answers).zip(&plan.members) {
        let Ok(Event::Accepted { first, last }) = answer else {
            continue;
        };
        if !in_lockstep && !is_one {
            output::say(format_args!(
                "{} is not in lockstep with the others ({} iterations): its window opens at its own iteration {first}",
                name(&process.status),
                process.status.iterations
            ));
        }
        members.push(Member {
            connection: process.connection,
            status: process.status,
            first,
            last,
        });
    }
    members
}

/// A process as messages name it.
fn name(status: &Status) -> String {
    match status.rank {
        Some(rank) => format!("{} (rank {rank})", status.pid),
        None => status.pid.to_string(),
    }
}

/// What became of the window of a process.
struct Captured {
    status: Status,
    /// The iteration that it opened with, and where it is recorded.
    first: Option<u64>,
    last: Option<u64>,
    record: Option<PathBuf>,
}

/// A process that is waited for.
struct Waiting {
    writer: Writer,
    captured: Captured,
    is_over: bool,
}

type Heard = (usize, io::Result<Event>);

/// Waits until all windows have closed; what became of them, and whether something failed.
fn follow(
    members: Vec<Member>,
    arguments: &Arguments,
    interrupts: &AtomicUsize,
) -> Result<(Vec<Captured>, bool)> {
    let (to, heard) = mpsc::channel();
    let mut waiting = Vec::new();
    let total: u64 = members
        .iter()
        .map(|member| span(member.first, member.last))
        .sum();
    for (place, member) in members.into_iter().enumerate() {
        let writer = member.connection.writer()?;
        member.connection.wait_for(None)?;
        let to = to.clone();
        thread::spawn(move || listen(place, member.connection, &to));
        waiting.push(Waiting {
            writer,
            captured: Captured {
                record: member.status.record.as_ref().map(PathBuf::from),
                status: member.status,
                first: None,
                last: member.last,
            },
            is_over: false,
        });
    }
    drop(to);
    let mut follow = Follow {
        waiting,
        failed: false,
        stopped: None,
        is_stuck: false,
        moved: Instant::now(),
        asked: Instant::now(),
        progress: Progress::new("capturing".to_owned(), total),
        shown: 0,
    };
    follow.run(&heard, arguments, interrupts)?;
    let captured = follow.waiting.into_iter().map(|waiting| waiting.captured);
    Ok((captured.collect(), follow.failed))
}

fn span(first: u64, last: Option<u64>) -> u64 {
    last.map_or(0, |last| last.saturating_sub(first).saturating_add(1))
}

/// Hands on what a process says, until its window has closed.
fn listen(place: usize, mut connection: Connection, to: &Sender<Heard>) {
    loop {
        let event = connection.next();
        let is_last = matches!(event, Ok(Event::Closed(_)) | Err(_));
        if to.send((place, event)).is_err() || is_last {
            return;
        }
    }
}

struct Follow {
    waiting: Vec<Waiting>,
    failed: bool,
    /// When all were stopped.
    stopped: Option<Instant>,
    is_stuck: bool,
    /// When something happened last.
    moved: Instant,
    asked: Instant,
    progress: Progress,
    shown: u64,
}

impl Follow {
    fn run(
        &mut self,
        heard: &Receiver<Heard>,
        arguments: &Arguments,
        interrupts: &AtomicUsize,
    ) -> Result<()> {
        while self.waiting.iter().any(|waiting| !waiting.is_over) {
            match heard.recv_timeout(Duration::from_millis(50)) {
                Ok((place, event)) => self.hear(place, event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            match (interrupts.load(Ordering::Relaxed), self.stopped) {
                (0, _) => {}
                (_, None) => {
                    output::say(format_args!(
                        "stopping; the processes go on (again: leave at once)"
                    ));
                    self.stop();
                }
                (1, _) => {}
                _ => bail!("left; what was asked for goes on: tllmprof stop ends it"),
            }
            if self.stopped.is_some_and(|since| since.elapsed() > CLOSING) {
                bail!("the windows are still open after {CLOSING:?}");
            }
            if self.stopped.is_none() && self.moved.elapsed() > arguments.wait {
                self.is_stuck = true;
                self.stop();
            }
            if self.asked.elapsed() > ASK {
                self.asked = Instant::now();
                self.ask(&Request::Status);
            }
        }
        Ok(())
    }

    fn ask(&mut self, request: &Request) {
        for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.is_over) {
            // Who is gone is heard of by the other thread.
            let _ = waiting.writer.ask(request);
        }
    }

    fn stop(&mut self) {
        self.stopped = Some(Instant::now());
        self.ask(&Request::Stop);
    }

    fn hear(&mut self, place: usize, event: io::Result<Event>) {
        let Some(waiting) = self.waiting.get_mut(place) else {
            return;
        };
        let captured = &mut waiting.captured;
        let pid = name(&captured.status);
        match event {
            Ok(Event::Status(status)) => {
                if status.iterations != captured.status.iterations {
                    self.moved = Instant::now();
                }
                captured.record = status
                    .record
                    .as_ref()
                    .map(PathBuf::from)
                    .or(captured.record.take());
                captured.status = *status;
                self.show();
            }
            Ok(Event::Opened { first }) => {
                captured.first = Some(first);
                self.moved = Instant::now();
            }
            Ok(Event::Closed(closed)) => {
                waiting.is_over = true;
                captured.record = closed.record.map(PathBuf::from).or(captured.record.take());
                match closed.steps {
                    Some((first, last)) => {
                        (captured.first, captured.last) = (Some(first), Some(last));
                    }
                    None if self.is_stuck => {
                        let Status {
                            rule, iterations, ..
                        } = &captured.status;
                        output::say(format_args!(
                            "{pid}: no iteration began for long ({iterations} so far, by {rule}): nothing was captured \
                             (--wait TIME waits longer)"
                        ));
                        self.failed = true;
                    }
                    None => output::say(format_args!(
                        "{pid}: the window closed without an iteration"
                    )),
                }
            }
            Ok(Event::Refused { why, .. }) => output::say(format_args!("{pid}: {why}")),
            Ok(Event::Accepted { .. }) => {}
            Err(_) => {
                waiting.is_over = true;
                self.failed = true;
                output::say(format_args!(
                    "{pid}: the process ended before its window closed"
                ));
            }
        }
    }

    /// Shows how many iterations are done.
    fn show(&mut self) {
        let done = |waiting: &Waiting| {
            let Captured { status, first, .. } = &waiting.captured;
            first.map_or(0, |first| status.iterations.saturating_sub(first))
        };
        let done = self.waiting.iter().map(done).sum::<u64>();
        self.progress.advance(done.saturating_sub(self.shown));
        self.shown = self.shown.max(done);
    }
}

/// Reads what was captured, and copies it where that is wanted.
fn read(all: &[Captured], arguments: &Arguments) -> Result<Vec<Read>> {
    if let Some(folder) = &arguments.output {
        fs::create_dir_all(folder).with_context(|| format!("-o {}", folder.display()))?;
    }
    let mut read = Vec::new();
    for captured in all {
        let Some(first) = captured.first else {
            continue;
        };
        let pid = name(&captured.status);
        let Some(record) = &captured.record else {
            output::say(format_args!(
                "{pid}: captured, and nothing is recorded: the process makes no record (TLLMPROF_TRACE)"
            ));
            continue;
        };
        let file = reachable(record, captured.status.pid);
        let file = match &arguments.output {
            Some(folder) => copy(&file, folder, captured)
                .with_context(|| format!("{pid}: {}", file.display()))?,
            None => file,
        };
        match of_window(&file, first) {
            Ok(process) if process.windows.is_empty() => {
                output::say(format_args!(
                    "{pid}: {}: the window is not in the record: the disk may be full, or the record",
                    file.display()
                ));
            }
            Ok(process) => read.push(process),
            Err(error) => output::say(format_args!(
                "{pid}: {}: {}",
                file.display(),
                crate::failure::text(&error)
            )),
        }
    }
    Ok(read)
}

/// The record where it can be read here: the process may be in a container.
fn reachable(record: &Path, pid: u64) -> PathBuf {
    if record.exists() {
        return record.to_owned();
    }
    let inside = record.strip_prefix("/").unwrap_or(record);
    let beyond = PathBuf::from(format!("/proc/{pid}/root")).join(inside);
    if beyond.exists() {
        beyond
    } else {
        record.to_owned()
    }
}

fn copy(file: &Path, folder: &Path, captured: &Captured) -> Result<PathBuf> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let number = |number: Option<u64>| number.map_or(String::new(), |number| format!("-{number}"));
    let name = format!(
        "{stem}{}{}.tllmprof",
        number(captured.first),
        number(captured.last)
    );
    let to = folder.join(name);
    fs::copy(file, &to)?;
    Ok(to)
}

/// The process, with the window that begins with this iteration alone.
fn of_window(file: &Path, first: u64) -> Result<Read> {
    let chosen = Chosen::new(processes::open(file, "reading")?, &[first])?;
    Ok(Read::read(file.to_owned(), &chosen)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(ms("10s"), Ok(10_000));
        assert_eq!((ms("1.5s"), ms("500ms")), (Ok(1500), Ok(500)));
        assert_eq!((ms("2m"), ms("1h")), (Ok(120_000), Ok(3_600_000)));
        for wrong in ["", "10", "s", "-1s", "0s", "1d", "infs", "1e300h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
