//! Has a window accepted in each process: with the same iteration in those in lockstep.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tllmprof_control::{Event, Request, Status};

use super::{CLOSING, Wanted, name};
use crate::failure::worded;
use crate::live::connection::Connection;
use crate::live::lockstep::{Plan, Sample};
use crate::live::sockets::Process;
use crate::output;

/// How long steps are counted, to know how fast they are.
const BETWEEN: Duration = Duration::from_millis(150);
/// How often a step is chosen that some have reached before all have confirmed.
const TRIES: u32 = 6;

/// A process whose window was accepted.
pub struct Member {
    pub connection: Connection,
    pub status: Status,
    pub first: u64,
    pub last: Option<u64>,
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
///
/// # Errors
/// Where one refuses, or no iteration can be agreed on.
pub fn begin(mut processes: Vec<Process>, wanted: &Wanted) -> Result<Vec<Member>> {
    let mut before = sample(&mut processes)?;
    for attempt in 1..=TRIES {
        let is_one = processes.len() == 1;
        if !is_one {
            thread::sleep(BETWEEN);
        }
        let samples = [before, sample(&mut processes)?, sample(&mut processes)?];
        let plan = Plan::new(&samples, 1 << attempt);
        let [.., latest] = samples;
        before = latest;
        // One alone takes the next.
        let first = plan.first.saturating_add(wanted.delay);
        let first_of = |is_member: &bool| (*is_member && !is_one).then_some(first);
        let firsts: Vec<_> = plan.members.iter().map(first_of).collect();
        for (process, first) in processes.iter_mut().zip(&firsts) {
            // What becomes of it shows where it is to answer.
            let _ = process.connection.ask(&wanted.request(*first));
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
                    process.connection.release(CLOSING)?;
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
