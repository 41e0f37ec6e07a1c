//! What keys ask of processes: done on a thread of its own, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tllmprof_control::{STEPS, Status};
use tllmprof_report::{LedgerKind, Process as Read};

use super::Event;
use crate::live::capture::{Wanted, Windows, take};
use crate::live::sockets::{self, Process};
use crate::live::stop::stop;
use crate::{failure, output};

/// How long a capture that runs may take to be stopped at the end.
const LEAVE: Duration = Duration::from_secs(2);

/// By what a process is known: two containers may have the same numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Id {
    host: String,
    pid: u64,
}

impl Id {
    pub fn of(status: &Status) -> Self {
        Self {
            host: status.host.clone(),
            pid: status.pid,
        }
    }
}

/// What the iterations of a window that was captured come to.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    pub pid: u32,
    pub rank: Option<u64>,
    pub window: (u64, u64),
    /// Nanoseconds.
    pub p50: Option<u64>,
    /// Shares of their time: of GPU work, of waits for it, of collections, of waits for the GIL. Nothing where that is not
    /// recorded.
    pub gpu: Option<f64>,
    /// How many iterations there are, and of how many the GPU's share is.
    pub iterations: u64,
    pub timed: u64,
    pub waits: Option<f64>,
    pub collections: Option<f64>,
    pub gil: Option<f64>,
    /// Requests and tokens of a batch, on average.
    pub batch: Option<(f64, f64)>,
}

impl Captured {
    fn of(read: &Read) -> Option<Self> {
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
            rank: (!read.facts.rank_source.is_empty()).then_some(read.facts.rank),
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

pub struct Orders {
    to: Sender<Event>,
    /// Stops the capture that runs.
    interrupts: Arc<AtomicUsize>,
    running: Option<JoinHandle<()>>,
}

impl Orders {
    pub fn new(to: Sender<Event>) -> Self {
        Self {
            to,
            interrupts: Arc::default(),
            running: None,
        }
    }

    /// Captures the next iterations of these processes.
    pub fn capture(&mut self, of: Vec<Id>) {
        if self.running.is_some() {
            return output::say(format_args!("wait until the last order is done"));
        }
        output::say(format_args!("capturing {STEPS} iterations"));
        let interrupts = Arc::clone(&self.interrupts);
        self.begin(move || {
            let wanted = Wanted::of_steps(STEPS);
            let (read, _) = take(find(&of)?, &wanted, &interrupts, &mut Windows::default())?;
            Ok(read.iter().filter_map(Captured::of).collect())
        });
    }

    /// Closes what is open in these processes; a capture of this command's ends, too.
    pub fn stop(&mut self, of: Vec<Id>) {
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
            // At the end nobody listens.
            let _ = to.send(Event::Done(done));
        }));
    }

    /// The last order is done.
    pub fn are_done(&mut self) {
        self.running = None;
    }

    /// Stops the capture that runs, if one does, and waits for that, but not for long.
    pub fn leave(&mut self) {
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

/// Connections of their own to these processes.
fn find(of: &[Id]) -> Result<Vec<Process>> {
    let mut found = sockets::listening();
    found.retain(|process| of.contains(&Id::of(&process.status)));
    if found.is_empty() {
        bail!("no process listens that could be asked");
    }
    Ok(found)
}
