//! Has a window accepted in each process: with the same iteration in those in lockstep.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tllmprof_control::{Event, Request, Status};

use super::{CLOSING, Wanted, ended, name};
use crate::failure::worded;
use crate::live::connection::{Connection, has_ended};
use crate::live::lockstep::{Plan, Sample};
use crate::live::sockets::Process;
use crate::output;

/// How long steps are counted, to know how fast they are.
const BETWEEN: Duration = Duration::from_millis(150);
/// How often a step is chosen that some have reached before all have confirmed.
const TRIES: u32 = 6;

const OTHER_ANSWER: &str = "it answers something else than it was asked";
const NONE_LEFT: &str = "nothing was captured: no process is left";

/// A process whose window was accepted.
pub struct Member {
    pub connection: Connection,
    pub status: Status,
    pub first: u64,
    pub last: Option<u64>,
}

/// Where windows were accepted, and whether that is not everywhere.
pub struct Begun {
    pub members: Vec<Member>,
    pub failed: bool,
}

/// Where a window is to be accepted.
struct Candidate {
    process: Process,
    /// Has ended meanwhile.
    is_gone: bool,
}

impl Candidate {
    fn ask(&mut self, request: &Request) {
        // What becomes of it shows where it is to answer.
        let _ = self.process.connection.ask(request);
    }

    /// The next answer; none from a process that has ended, which is said.
    fn answer(&mut self) -> io::Result<Option<Event>> {
        let answer = self.process.connection.next();
        self.unless_gone(answer)
    }

    /// Gives up the window that was accepted.
    fn release(&mut self) -> io::Result<()> {
        let released = self.process.connection.release(CLOSING);
        self.unless_gone(released).map(drop)
    }

    fn unless_gone<T>(&mut self, result: io::Result<T>) -> io::Result<Option<T>> {
        match result {
            Ok(result) => Ok(Some(result)),
            Err(error) if has_ended(&error) => {
                self.is_gone = true;
                output::say(format_args!("{}", ended(&self.process.status)));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Takes out those that have ended.
///
/// # Errors
/// Where none is left.
fn leave_ended(candidates: &mut Vec<Candidate>) -> Result<()> {
    candidates.retain(|candidate| !candidate.is_gone);
    if candidates.is_empty() {
        bail!(NONE_LEFT);
    }
    Ok(())
}

/// Reads the counts of all that have not ended.
fn sample(candidates: &mut [Candidate]) -> Result<Sample> {
    let since = Instant::now();
    let asked = |candidate: &mut Candidate| candidate.ask(&Request::Status);
    candidates.iter_mut().for_each(asked);
    let mut counts = Vec::new();
    for candidate in candidates.iter_mut() {
        let pid = candidate.process.status.pid;
        match candidate.answer() {
            Ok(Some(Event::Status(status))) => counts.push(*status),
            Ok(None) => {}
            Ok(Some(_)) => bail!("{pid}: {OTHER_ANSWER}"),
            Err(error) => bail!(no_answer(pid, &error)),
        }
    }
    Ok(Sample {
        counts,
        took: since.elapsed(),
    })
}

/// Three samples of the same processes, as [`Plan::new`] wants them.
fn samples(candidates: &mut Vec<Candidate>) -> Result<[Sample; 3]> {
    loop {
        let before = sample(candidates)?;
        if candidates.len() > 1 {
            thread::sleep(BETWEEN);
        }
        let samples = [before, sample(candidates)?, sample(candidates)?];
        let all = candidates.len();
        leave_ended(candidates)?;
        if candidates.len() == all {
            return Ok(samples);
        }
    }
}

/// Has windows accepted in all processes: with the same iteration in those in lockstep. Processes that end meanwhile are
/// named and left out.
///
/// # Errors
/// Where one refuses, none is left, or no iteration can be agreed on.
pub fn begin(processes: Vec<Process>, wanted: &Wanted) -> Result<Begun> {
    let asked = processes.len();
    let candidate = |process| Candidate {
        process,
        is_gone: false,
    };
    let mut candidates: Vec<_> = processes.into_iter().map(candidate).collect();
    for attempt in 1..=TRIES {
        let samples = samples(&mut candidates)?;
        let is_one = candidates.len() == 1;
        let plan = Plan::new(&samples, 1 << attempt);
        // One alone takes the next.
        let first = plan.first.saturating_add(wanted.delay);
        let first_of = |is_member: &bool| (*is_member && !is_one).then_some(first);
        for (candidate, is_member) in candidates.iter_mut().zip(&plan.members) {
            candidate.ask(&wanted.request(first_of(is_member)));
        }
        let answers: Vec<_> = candidates.iter_mut().map(Candidate::answer).collect();
        let is_accepted =
            |answer: &io::Result<_>| matches!(answer, Ok(None | Some(Event::Accepted { .. })));
        if answers.iter().all(is_accepted) {
            let members = accepted(candidates, answers, &plan, is_one);
            if members.is_empty() {
                bail!(NONE_LEFT);
            }
            let failed = members.len() < asked;
            return Ok(Begun { members, failed });
        }
        let mut refusals = Vec::new();
        for (candidate, answer) in candidates.iter_mut().zip(answers) {
            let pid = candidate.process.status.pid;
            match answer {
                Ok(Some(Event::Accepted { .. })) => {
                    if let Err(error) = candidate.release() {
                        refusals.push(no_answer(pid, &error));
                    }
                }
                Ok(Some(Event::Refused { next: Some(_), .. })) if attempt < TRIES => {}
                Ok(Some(Event::Refused { why, .. })) => refusals.push(format!("{pid}: {why}")),
                Ok(Some(_)) => refusals.push(format!("{pid}: {OTHER_ANSWER}")),
                Ok(None) => {}
                Err(error) => refusals.push(no_answer(pid, &error)),
            }
        }
        if let Some((last, others)) = refusals.split_last() {
            others
                .iter()
                .for_each(|refusal| output::say(format_args!("{refusal}")));
            bail!("{last}");
        }
        leave_ended(&mut candidates)?;
    }
    bail!("the processes are too fast for an iteration to be agreed on")
}

fn accepted(
    candidates: Vec<Candidate>,
    answers: Vec<io::Result<Option<Event>>>,
    plan: &Plan,
    is_one: bool,
) -> Vec<Member> {
    let mut members = Vec::new();
    for ((candidate, answer), in_lockstep) in candidates.into_iter().zip(answers).zip(&plan.members)
    {
        let Ok(Some(Event::Accepted { first, last })) = answer else {
            continue;
        };
        let Process {
            connection, status, ..
        } = candidate.process;
        if !in_lockstep && !is_one {
            output::say(format_args!(
                "{} is not in lockstep with the others ({} iterations): its window opens at its own iteration {first}",
                name(&status),
                status.iterations
            ));
        }
        members.push(Member {
            connection,
            status,
            first,
            last,
        });
    }
    members
}

fn no_answer(pid: u64, error: &io::Error) -> String {
    format!("{pid}: it does not answer: {}", worded(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use super::*;

    /// A process that makes no step and answers each request for a window as `answer` does, until that gives none.
    fn process(pid: u64, mut answer: impl FnMut() -> Option<Event> + Send + 'static) -> Process {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let status = Status {
            pid,
            ..Status::default()
        };
        let answered = Event::Status(Box::new(status.clone())).to_line();
        thread::spawn(move || {
            for line in BufReader::new(theirs.try_clone().unwrap()).split(b'\n') {
                let line = match Request::from_line(&line.unwrap()).unwrap() {
                    Request::Status => answered.clone(),
                    _ => match answer() {
                        Some(event) => event.to_line(),
                        None => return,
                    },
                };
                theirs.write_all(line.as_bytes()).unwrap();
            }
        });
        Process {
            socket: PathBuf::new(),
            connection: Connection::over(ours),
            status,
        }
    }

    /// Accepts, then ends.
    fn ends_behind(accepted: u32) -> impl FnMut() -> Option<Event> {
        let mut left = accepted;
        move || {
            left = left.checked_sub(1)?;
            Some(Event::Accepted {
                first: 1,
                last: None,
            })
        }
    }

    #[test]
    fn a_process_that_ends_while_a_step_is_agreed_on_leaves_the_others_their_window() {
        let mut is_first = true;
        let late_once = move || {
            Some(if std::mem::take(&mut is_first) {
                Event::Refused {
                    why: "late".to_owned(),
                    next: Some(2),
                }
            } else {
                Event::Accepted {
                    first: 2,
                    last: Some(3),
                }
            })
        };
        let processes = vec![process(1, late_once), process(2, ends_behind(1))];
        let begun = begin(processes, &Wanted::of_steps(2)).unwrap();
        let pids: Vec<_> = begun.members.iter().map(|one| one.status.pid).collect();
        assert_eq!(pids, [1]);
        assert!(begun.failed);
    }

    #[test]
    fn where_every_process_ends_nothing_is_captured() {
        let processes = vec![process(1, ends_behind(0)), process(2, ends_behind(0))];
        let error = begin(processes, &Wanted::of_steps(2)).err().unwrap();
        assert_eq!(error.to_string(), NONE_LEFT);
    }
}
