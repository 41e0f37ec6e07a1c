//! Orders of the user of `top`: captures and stops that the user requests with keys. A separate thread carries out one
//! order at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tllmprof_control::{STEPS, Status};
use tllmprof_report::{LedgerKind, Process as Read};

use super::Update;
use crate::live::capture::{CaptureRequest, CapturedWindows, take};
use crate::live::sockets::{self, ListeningProcess};
use crate::live::stop::stop;
use crate::{failure, output};

/// Time that a running capture has to stop when the command `top` ends.
const LEAVE: Duration = Duration::from_secs(2);

/// The identity of a process: its host and its process id. The process id is not enough, because two containers may use
/// the same ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Id {
    host: String,
    pid: u64,
}

impl Id {
    pub(crate) fn from_status(status: &Status) -> Self {
        Self {
            host: status.host.clone(),
            pid: status.pid,
        }
    }
}

/// A summary of the iterations in a captured window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Captured {
    pub pid: u32,
    pub rank: Option<u64>,
    pub window: (u64, u64),
    /// Median iteration time in the window, in nanoseconds.
    pub p50: Option<u64>,
    /// The GPU's working time as a share of the duration of the iterations whose GPU time is known. `None` if GPU times
    /// were not recorded.
    pub gpu: Option<f64>,
    pub iterations: u64,
    /// Number of iterations in the window whose GPU time is known.
    pub timed: u64,
    /// Time of waits for the GPU, as a share of the iterations' time. `None` if there were no waits, or if they were
    /// not recorded.
    pub waits: Option<f64>,
    /// Time of Python's garbage collections, as a share of the iterations' time. `None` if there were none, or if they
    /// were not recorded.
    pub collections: Option<f64>,
    /// Time of waits for the GIL, as a share of the iterations' time. `None` if there were no waits, or if they were
    /// not recorded.
    pub gil: Option<f64>,
    /// Mean number of requests and mean number of tokens in a batch. `None` if batches were not recorded.
    pub batch: Option<(f64, f64)>,
}

impl Captured {
    fn from_process(read: &Read) -> Option<Self> {
        let window = read.windows.last()?;
        let sum = read.sum.as_ref()?;
        let share = |part: u64| (part > 0).then(|| sum.share(part));
        let batches = window.qualified().filter_map(|iteration| iteration.batch);
        let batches: Vec<_> = batches.collect();
        let mean = |of: fn(&tllmprof_record::Batch) -> u32| {
            batches.iter().map(of).map(f64::from).sum::<f64>() / batches.len() as f64
        };
        Some(Self {
            pid: read.pid,
            rank: read.facts.known_rank(),
            window: (window.first, window.last),
            p50: Some(sum.time.p50),
            gpu: sum.gpu_share,
            iterations: sum.iterations,
            timed: sum.gpu_iterations,
            waits: Some(read.ledger.host_share(LedgerKind::Wait)).filter(|share| *share > 0.0),
            collections: share(sum.totals.gc),
            gil: share(sum.totals.gil_wait),
            batch: (!batches.is_empty()).then(|| {
                (
                    mean(|batch| u32::from(batch.requests)),
                    mean(|batch| batch.tokens),
                )
            }),
        })
    }
}

/// Returns the message that `top` shows during a capture.
pub(crate) fn capturing() -> String {
    format!("capturing {STEPS} iterations")
}

pub(super) struct Orders {
    to: Sender<Update>,
    /// 1 if the user has asked to stop the capture that this command runs now, otherwise 0.
    interrupts: Arc<AtomicUsize>,
    running: Option<JoinHandle<()>>,
}

impl Orders {
    pub(super) fn new(to: Sender<Update>) -> Self {
        Self {
            to,
            interrupts: Arc::default(),
            running: None,
        }
    }

    /// Captures the next iterations of the processes `of`, on a separate thread.
    pub(crate) fn capture(&mut self, of: Vec<Id>) {
        if self.running.is_some() {
            return output::say(format_args!("wait until the last order is done"));
        }
        output::say(format_args!("{}", capturing()));
        let interrupts = Arc::clone(&self.interrupts);
        self.begin(move || {
            let wanted = CaptureRequest::from_steps(STEPS, None);
            let (read, _) = take(
                find(&of)?,
                &wanted,
                &interrupts,
                &mut CapturedWindows::default(),
            )?;
            Ok(read.iter().filter_map(Captured::from_process).collect())
        });
    }

    /// Closes the open windows (ranges of captured iterations) of the processes `of`. If this command is capturing,
    /// stops that capture instead.
    pub(crate) fn stop(&mut self, of: Vec<Id>) {
        if self.running.is_some() {
            self.interrupts.store(1, Ordering::Relaxed);
            return;
        }
        self.begin(move || {
            stop(find(&of)?, false);
            Ok(Vec::new())
        });
    }

    fn begin(&mut self, work: impl FnOnce() -> Result<Vec<Captured>> + Send + 'static) {
        self.interrupts.store(0, Ordering::Relaxed);
        let to = self.to.clone();
        self.running = Some(thread::spawn(move || {
            let done = work().unwrap_or_else(|error| {
                output::say(format_args!("{}", failure::text(&error)));
                Vec::new()
            });
            // An error is ignored, because the receiver no longer exists when the command is ending.
            let _ = to.send(Update::Done(done));
        }));
    }

    /// Allows the next order. Call this when the running order (a capture or a stop) has been carried out.
    pub(crate) fn are_done(&mut self) {
        self.running = None;
    }

    /// Stops the running capture, if any, and waits at most [`LEAVE`] for the end of the capture.
    pub(crate) fn leave(&mut self) {
        self.interrupts.store(1, Ordering::Relaxed);
        let until = Instant::now() + LEAVE;
        while let Some(running) = &self.running
            && !running.is_finished()
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Opens connections to the processes `of`, in addition to the connections that update the screen.
fn find(of: &[Id]) -> Result<Vec<ListeningProcess>> {
    let mut found = sockets::listening();
    found.retain(|process| of.contains(&Id::from_status(&process.status)));
    if found.is_empty() {
        bail!("no process listens that could be asked");
    }
    Ok(found)
}
