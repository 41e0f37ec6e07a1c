//! Waits for the windows (ranges of captured iterations) that the processes have accepted, and shows their progress.
//! Closes the windows early if the user interrupts the command, or if no iteration begins in time.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tllmprof_control::{ControlEvent, Request, Status};

use super::begin::Member;
use super::{CLOSING, CaptureRequest, ended, name};
use crate::live::connection::{Connection, Writer};
use crate::output;
use crate::progress::Progress;

/// Interval at which the command asks the processes for their progress.
const ASK: Duration = Duration::from_millis(500);
/// The result of the capture of one window (a range of iterations) in a process.
pub(crate) struct Captured {
    pub status: Status,
    /// The first iteration of the window. `None` if the window has not opened.
    pub first: Option<u64>,
    /// The last iteration of the window. Before the window has closed, this is the planned last iteration, or `None` if
    /// the capture has a duration (`--for`) instead of a number of iterations.
    pub last: Option<u64>,
    /// The path of the record that contains the window, as the captured process knows it. `None` if the process writes
    /// no record.
    pub record: Option<PathBuf>,
}

/// A process that has accepted a window (a range of iterations to capture). `is_over` is true once the window has
/// closed or the process has ended.
struct Waiting {
    writer: Writer,
    captured: Captured,
    is_over: bool,
}

type Heard = (usize, io::Result<ControlEvent>);

/// Waits until all windows (ranges of captured iterations) have closed. Returns the outcome of each window, and true if
/// any capture failed.
///
/// # Errors
/// The user interrupted twice, or a window did not close within [`CLOSING`] after it was stopped.
pub(crate) fn follow(
    members: Vec<Member>,
    wanted: &CaptureRequest,
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
    follow.run(&heard, wanted, interrupts)?;
    let captured = follow.waiting.into_iter().map(|waiting| waiting.captured);
    Ok((captured.collect(), follow.failed))
}

fn span(first: u64, last: Option<u64>) -> u64 {
    last.map_or(0, |last| last.saturating_sub(first).saturating_add(1))
}

/// Forwards the messages of one process to `to` until the process's window (a range of captured iterations) has closed
/// or the connection fails. A separate thread runs this function for each process.
fn listen(place: usize, mut connection: Connection, to: &Sender<Heard>) {
    loop {
        let event = connection.next();
        let is_last = matches!(event, Ok(ControlEvent::Closed(_)) | Err(_));
        if to.send((place, event)).is_err() || is_last {
            return;
        }
    }
}

struct Follow {
    waiting: Vec<Waiting>,
    failed: bool,
    /// The time at which the command asked all processes to close their windows (ranges of captured iterations). `None`
    /// before that time.
    stopped: Option<Instant>,
    is_stuck: bool,
    /// The time at which this command last noticed that an iteration or a window had begun in any process.
    moved: Instant,
    asked: Instant,
    progress: Progress,
    shown: u64,
}

impl Follow {
    fn run(
        &mut self,
        heard: &Receiver<Heard>,
        wanted: &CaptureRequest,
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
            if self.stopped.is_none() && self.moved.elapsed() > wanted.patience() {
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
            // An error of this request is ignored, because the thread that reads from the process notices when the
            // process has ended.
            let _ = waiting.writer.ask(request);
        }
    }

    fn stop(&mut self) {
        self.stopped = Some(Instant::now());
        self.ask(&Request::Stop);
    }

    fn hear(&mut self, place: usize, event: io::Result<ControlEvent>) {
        let Some(waiting) = self.waiting.get_mut(place) else {
            return;
        };
        let captured = &mut waiting.captured;
        let pid = name(&captured.status);
        match event {
            Ok(ControlEvent::Status(status)) => {
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
            Ok(ControlEvent::Opened { first }) => {
                captured.first = Some(first);
                self.moved = Instant::now();
            }
            Ok(ControlEvent::Closed(closed)) => {
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
                    None => {
                        output::say(format_args!(
                            "{pid}: the window closed without an iteration"
                        ));
                        self.failed = true;
                    }
                }
            }
            Ok(ControlEvent::Refused { why, .. }) => output::say(format_args!("{pid}: {why}")),
            Ok(ControlEvent::Accepted { .. }) => {}
            Err(_) => {
                waiting.is_over = true;
                self.failed = true;
                output::say(format_args!("{}", ended(&captured.status)));
            }
        }
    }

    /// Shows in the progress line how many iterations have been captured.
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
