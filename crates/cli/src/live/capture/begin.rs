//! Opens a window, which is a range of iterations to capture, in each process. Processes in lockstep make the same
//! steps at the same time, and their windows begin with the same iteration.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tllmprof_control::{ControlEvent, Request, Status};

use super::{CLOSING, CaptureRequest, ended, name};
use crate::failure::worded;
use crate::live::connection::{Connection, has_ended};
use crate::live::lockstep::{Plan, Sample};
use crate::live::sockets::ListeningProcess;
use crate::output;

/// Time between two readings of the step counts, from which the rate of steps is estimated.
const BETWEEN: Duration = Duration::from_millis(150);
/// Number of attempts to choose a first iteration. An attempt fails if a process reaches the chosen iteration before
/// all processes have accepted it.
const TRIES: u32 = 6;

const OTHER_ANSWER: &str = "it answers something else than it was asked";
const NONE_LEFT: &str = "nothing was captured: no process is left";

/// A process that has accepted the request to open a window, which is a range of iterations to capture.
pub(crate) struct Member {
    pub connection: Connection,
    pub status: Status,
    pub first: u64,
    pub last: Option<u64>,
}

/// The processes that have accepted the request to open a window. `failed` is true if any process has not accepted
/// it.
pub(crate) struct BegunProcesses {
    pub members: Vec<Member>,
    pub failed: bool,
}

/// A process that this command asks to open a window (a range of iterations to capture).
struct CaptureCandidate {
    process: ListeningProcess,
    /// True if the process has ended since this command connected to it.
    is_gone: bool,
}

impl CaptureCandidate {
    fn ask(&mut self, request: &Request) {
        // An error is ignored. If the request cannot be sent, the later read of the answer fails as well.
        let _ = self.process.connection.ask(request);
    }

    /// Returns the process's next answer. If the process has ended, logs this and returns `None`.
    fn answer(&mut self) -> io::Result<Option<ControlEvent>> {
        let answer = self.process.connection.next();
        self.unless_gone(answer)
    }

    /// Closes the window (the range of captured iterations) that the process has accepted but that is no longer wanted.
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

/// Removes from `candidates` the processes that have ended.
///
/// # Errors
/// No process is left.
fn leave_ended(candidates: &mut Vec<CaptureCandidate>) -> Result<()> {
    candidates.retain(|candidate| !candidate.is_gone);
    if candidates.is_empty() {
        bail!(NONE_LEFT);
    }
    Ok(())
}

/// Reads the iteration counts of all candidates. Candidates that end before they answer are left out. Fails if a
/// candidate does not answer in time, or answers with something other than its status.
fn sample(candidates: &mut [CaptureCandidate]) -> Result<Sample> {
    let since = Instant::now();
    let asked = |candidate: &mut CaptureCandidate| candidate.ask(&Request::Status);
    candidates.iter_mut().for_each(asked);
    let mut counts = Vec::new();
    for candidate in candidates.iter_mut() {
        let pid = candidate.process.status.pid;
        match candidate.answer() {
            Ok(Some(ControlEvent::Status(status))) => counts.push(*status),
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

/// Reads the iteration counts of all candidates three times, for [`Plan::new`]. If a process ends meanwhile, all
/// three samples are taken again, so that they contain the same processes.
fn samples(candidates: &mut Vec<CaptureCandidate>) -> Result<[Sample; 3]> {
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

/// Opens a window in each process, with the same first iteration in the processes that are in lockstep (that make the
/// same steps at the same time). A process that ends before it has accepted its window is logged and left out.
///
/// # Errors
/// A process refuses, no process is left, or the processes are too fast to agree on an iteration.
pub(super) fn begin(
    processes: Vec<ListeningProcess>,
    wanted: &CaptureRequest,
) -> Result<BegunProcesses> {
    let asked = processes.len();
    let candidate = |process| CaptureCandidate {
        process,
        is_gone: false,
    };
    let mut candidates: Vec<_> = processes.into_iter().map(candidate).collect();
    // The earliest iteration with which the new windows may begin. It is the first iteration after the windows that are
    // already open in some of the processes. `None` as long as no process has refused because of an open window, or if
    // the user did not give `--wait`.
    let mut behind = None;
    for attempt in 1..=TRIES {
        let samples = samples(&mut candidates)?;
        let plan = Plan::new(&samples, 1 << attempt);
        let first = plan.first.max(behind.unwrap_or(0));
        let first = first.saturating_add(wanted.delay);
        // A single process, or a process that is not in lockstep (in the same step as the others), begins with its next
        // iteration, unless it has to wait for another window to close.
        let is_agreed = plan.members.iter().filter(|is_member| **is_member).count() > 1;
        let own = behind.map(|behind: u64| behind.saturating_add(wanted.delay));
        let in_lockstep = wanted.request(if is_agreed { Some(first) } else { own });
        let mut answers = ask(&mut candidates, &plan, true, &in_lockstep);
        let is_accepted = |answer: &io::Result<_>| {
            matches!(answer, Ok(None | Some(ControlEvent::Accepted { .. })))
        };
        // A process that is not in lockstep (in the same step as the others) may open its window at once, and
        // iterations that it captures then stay in its record. So these processes are asked only after all processes in
        // lockstep have accepted.
        if answers.iter().all(|(_, answer)| is_accepted(answer)) {
            answers.extend(ask(&mut candidates, &plan, false, &wanted.request(own)));
        }
        if answers.iter().all(|(_, answer)| is_accepted(answer)) {
            let members = accepted(candidates, answers, &plan);
            if members.is_empty() {
                bail!(NONE_LEFT);
            }
            let failed = members.len() < asked;
            return Ok(BegunProcesses { members, failed });
        }
        let mut refusals = Vec::new();
        for (index, answer) in answers {
            let candidate = &mut candidates[index];
            let pid = candidate.process.status.pid;
            match answer {
                Ok(Some(ControlEvent::Accepted { .. })) => {
                    if let Err(error) = candidate.release() {
                        refusals.push(no_answer(pid, &error));
                    }
                }
                Ok(Some(ControlEvent::Refused { next: Some(_), .. })) if attempt < TRIES => {}
                Ok(Some(ControlEvent::Refused {
                    ends: Some(ends), ..
                })) if wanted.wait.is_some() && attempt < TRIES => {
                    behind = behind.max(ends.checked_add(1));
                }
                Ok(Some(ControlEvent::Refused { why, .. })) => {
                    refusals.push(format!("{pid}: {why}"))
                }
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

/// An answer to a request, with the index of the process that gave it. `None` if the process has ended.
type CaptureAnswer = (usize, io::Result<Option<ControlEvent>>);

/// Sends `request` to the processes in lockstep (which make the same steps at the same time) if `in_lockstep` is true,
/// otherwise to all other processes. Returns the answers of the processes that got the request.
fn ask(
    candidates: &mut [CaptureCandidate],
    plan: &Plan,
    in_lockstep: bool,
    request: &Request,
) -> Vec<CaptureAnswer> {
    let all = plan.members.iter().zip(candidates).enumerate();
    let mut asked: Vec<_> = all
        .filter(|(_, (is_member, _))| **is_member == in_lockstep)
        .map(|(index, (_, candidate))| (index, candidate))
        .collect();
    for (_, candidate) in &mut asked {
        candidate.ask(request);
    }
    let answer = |(index, candidate): (usize, &mut CaptureCandidate)| (index, candidate.answer());
    asked.into_iter().map(answer).collect()
}

/// Returns the processes that have accepted. `answers` has one answer of each candidate, in any order.
fn accepted(
    candidates: Vec<CaptureCandidate>,
    mut answers: Vec<CaptureAnswer>,
    plan: &Plan,
) -> Vec<Member> {
    let is_one = candidates.len() == 1;
    answers.sort_by_key(|(index, _)| *index);
    let answers = answers.into_iter().map(|(_, answer)| answer);
    let mut members = Vec::new();
    for ((candidate, answer), in_lockstep) in candidates.into_iter().zip(answers).zip(&plan.members)
    {
        let Ok(Some(ControlEvent::Accepted { first, last })) = answer else {
            continue;
        };
        let ListeningProcess {
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
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Simulates a process that has made no steps. It answers in the same way as the process of [`process_after`].
    fn process(
        pid: u64,
        answer: impl FnMut() -> Option<ControlEvent> + Send + 'static,
    ) -> ListeningProcess {
        process_after(0, pid, answer)
    }

    /// Simulates a process that has made some steps and makes no more. The simulated process calls `answer` for each
    /// request except status requests, sends the result, and ends once `answer` returns `None`.
    fn process_after(
        iterations: u64,
        pid: u64,
        mut answer: impl FnMut() -> Option<ControlEvent> + Send + 'static,
    ) -> ListeningProcess {
        process_asked(iterations, pid, move |_| answer())
    }

    /// Simulates a process like [`process_after`], whose function `answer` also gets the request.
    fn process_asked(
        iterations: u64,
        pid: u64,
        mut answer: impl FnMut(Request) -> Option<ControlEvent> + Send + 'static,
    ) -> ListeningProcess {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let status = Status {
            pid,
            iterations,
            ..Status::default()
        };
        let answered = ControlEvent::Status(Box::new(status.clone())).to_line();
        thread::spawn(move || {
            for line in BufReader::new(theirs.try_clone().unwrap()).split(b'\n') {
                let line = match Request::from_line(&line.unwrap()).unwrap() {
                    Request::Status => answered.clone(),
                    request => match answer(request) {
                        Some(event) => event.to_line(),
                        None => return,
                    },
                };
                theirs.write_all(line.as_bytes()).unwrap();
            }
        });
        ListeningProcess {
            socket: PathBuf::new(),
            connection: Connection::from_stream(ours),
            status,
        }
    }

    /// Returns an answer function for [`process`] that accepts `accepted` requests. At the next request it returns
    /// `None`, which ends the simulated process.
    fn ends_behind(accepted: u32) -> impl FnMut() -> Option<ControlEvent> {
        let mut left = accepted;
        move || {
            left = left.checked_sub(1)?;
            Some(ControlEvent::Accepted {
                first: 1,
                last: None,
            })
        }
    }

    /// Returns an answer function for [`process`] that refuses the first request and accepts all later ones. A real
    /// process refuses a request if it has already reached the wanted iteration.
    fn late_once() -> impl FnMut() -> Option<ControlEvent> {
        let mut is_first = true;
        move || {
            Some(if std::mem::take(&mut is_first) {
                ControlEvent::Refused {
                    why: "late".to_owned(),
                    next: Some(2),
                    ends: None,
                }
            } else {
                ControlEvent::Accepted {
                    first: 2,
                    last: Some(3),
                }
            })
        }
    }

    #[test]
    fn a_process_out_of_lockstep_is_asked_once_the_others_have_agreed() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let accepts = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Some(ControlEvent::Accepted {
                first: 1001,
                last: Some(1002),
            })
        };
        let processes = vec![
            process_after(1000, 1, accepts),
            process(2, late_once()),
            process(3, late_once()),
        ];
        let begun = begin(processes, &CaptureRequest::from_steps(2, None)).unwrap();
        let firsts: Vec<_> = begun.members.iter().map(|one| one.first).collect();
        assert_eq!(firsts, [1001, 2, 2]);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_process_that_ends_while_a_step_is_agreed_on_leaves_the_others_their_window() {
        let processes = vec![process(1, late_once()), process(2, ends_behind(1))];
        let begun = begin(processes, &CaptureRequest::from_steps(2, None)).unwrap();
        let pids: Vec<_> = begun.members.iter().map(|one| one.status.pid).collect();
        assert_eq!(pids, [1]);
        assert!(begun.failed);
    }

    #[test]
    fn who_waits_gets_the_iteration_after_the_window_that_is_in_the_way() {
        let answer = || {
            let mut turn = 0;
            move || {
                turn += 1;
                Some(match turn {
                    1 => ControlEvent::Refused {
                        why: "window 0-99 is open".to_owned(),
                        next: None,
                        ends: Some(99),
                    },
                    _ => ControlEvent::Accepted {
                        first: 100,
                        last: Some(101),
                    },
                })
            }
        };
        let error = begin(
            vec![process(1, answer())],
            &CaptureRequest::from_steps(2, None),
        );
        assert_eq!(error.err().unwrap().to_string(), "1: window 0-99 is open");
        let waits = CaptureRequest::from_steps(2, Some(Duration::from_secs(1)));
        let begun = begin(vec![process(1, answer()), process(2, answer())], &waits).unwrap();
        let firsts: Vec<_> = begun.members.iter().map(|one| one.first).collect();
        assert_eq!(firsts, [100, 100]);
    }

    #[test]
    fn the_delay_counts_from_the_end_of_the_window_that_is_in_the_way() {
        let firsts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&firsts);
        let answer = move |request| {
            let Request::Capture(capture) = request else {
                panic!("{request:?}");
            };
            let mut seen = seen.lock().unwrap();
            seen.push(capture.first);
            Some(match seen.len() {
                1 => ControlEvent::Refused {
                    why: "window 0-99 is open".to_owned(),
                    next: None,
                    ends: Some(99),
                },
                _ => ControlEvent::Accepted {
                    first: 107,
                    last: Some(108),
                },
            })
        };
        let waits = CaptureRequest {
            delay: 7,
            ..CaptureRequest::from_steps(2, Some(Duration::from_secs(1)))
        };
        begin(vec![process_asked(0, 1, answer)], &waits).unwrap();
        assert_eq!(*firsts.lock().unwrap(), [None, Some(107)]);
    }

    #[test]
    fn where_every_process_ends_nothing_is_captured() {
        let processes = vec![process(1, ends_behind(0)), process(2, ends_behind(0))];
        let error = begin(processes, &CaptureRequest::from_steps(2, None))
            .err()
            .unwrap();
        assert_eq!(error.to_string(), NONE_LEFT);
    }
}
