//! The processes that `top` shows. Each is asked once a second, over a connection that stays open.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use tllmprof_control::{ControlEvent, Phase, Request, Status};

use crate::live::ps::rate;
use crate::live::record::Figures;
use crate::live::sockets::{self, ListeningProcess};
use crate::live::targets::Targets;

/// The largest number of samples over which rates and durations are computed.
const MAX_SAMPLES: usize = 6;
/// The shortest time between two samples from which a rate is computed, in nanoseconds.
const SHORTEST: u64 = 100_000_000;
/// A process that has not answered this number of requests gets no further request until it answers.
const MAX_OWED: u32 = 5;
/// Interval between two searches for new processes.
const AGAIN: Duration = Duration::from_secs(2);

/// A row of the table that `top` shows: one process, its state and its rates.
#[derive(Clone, Default)]
pub(super) struct ProcessRow {
    pub status: Status,
    /// Iterations of the process per second. `None` if too few samples were taken.
    pub rate: Option<f64>,
    /// Median duration of the latest iterations outside windows (captured ranges), in nanoseconds. If the record has no
    /// such iterations, this is the median that the process reports itself, or else the median of all iterations
    /// outside windows since the process started. `None` if it is not known.
    pub p50: Option<u64>,
    /// The 99th percentile of the durations of the latest iterations outside windows, in nanoseconds. If there are too
    /// few of these, it is computed from all iterations outside windows since the process started. `None` if it is not
    /// known.
    pub p99: Option<u64>,
    /// Number of calls that waited for the GPU, per second. `None` if it is not known.
    pub waits: Option<f64>,
    /// Number of Python's garbage collections, per second. `None` if it is not known.
    pub collections: Option<f64>,
    /// Number of times that a thread took the GIL and released it, per second. `None` if it is not known.
    pub handoffs: Option<f64>,
    /// GPU time as a share of the duration of those iterations inside windows whose GPU time was measured. Only windows
    /// that closed recently count. If there are none, all windows since the process started count. `None` if it is not
    /// known.
    pub gpu: Option<f64>,
}

pub(super) struct WatchedProcesses {
    processes: Vec<One>,
    /// The time of the next search for new processes. `None` if the user named the processes.
    next: Option<Instant>,
}

struct One {
    process: ListeningProcess,
    /// Number of requests that the process has not answered yet. A busy process may answer late.
    owes: u32,
    /// The latest samples of the process's state, oldest first.
    looks: VecDeque<Look>,
}

struct Look {
    status: Status,
    figures: Option<Figures>,
}

impl WatchedProcesses {
    /// Connects to the selected processes and begins to watch them.
    ///
    /// # Errors
    /// A process that the user named does not listen on a control socket.
    pub(crate) fn new(targets: &Targets) -> Result<Self> {
        let named = !targets.processes.is_empty() || targets.run.is_some();
        let mut new = Self {
            processes: Vec::new(),
            next: (!named).then(Instant::now),
        };
        if named {
            new.add(targets.find()?);
        }
        Ok(new)
    }

    fn add(&mut self, processes: Vec<ListeningProcess>) {
        let new = processes.into_iter().map(|process| One {
            looks: VecDeque::from([Look::new(process.status.clone())]),
            process,
            owes: 0,
        });
        self.processes.extend(new);
        let order = |a: &One, b: &One| {
            sockets::order(&a.process.status).cmp(&sockets::order(&b.process.status))
        };
        self.processes.sort_by(order);
    }

    /// Asks all processes for their state, and returns a row for each. Processes that have ended are removed.
    pub(super) fn look(&mut self) -> Vec<ProcessRow> {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            self.next = Some(Instant::now() + AGAIN);
            let known: Vec<&Path> = self
                .processes
                .iter()
                .map(|one| one.process.socket.as_path())
                .collect();
            let new = sockets::listening_but(&known);
            self.add(new);
        }
        for one in self.processes.iter_mut().filter(|one| one.owes < MAX_OWED) {
            // An error is ignored. If the request cannot be sent, the later read of the answer fails as well.
            let _ = one.process.connection.ask(&Request::Status);
            one.owes += 1;
        }
        self.processes.retain_mut(One::hear);
        self.processes.iter().map(One::row).collect()
    }
}

impl Look {
    fn new(status: Status) -> Self {
        let figures = Figures::from_status(&status);
        Self { status, figures }
    }
}

impl One {
    /// Reads the answers that the process still owes, until one does not arrive within the connection's read timeout.
    /// Returns true if the process still exists.
    fn hear(&mut self) -> bool {
        while self.owes > 0 {
            match self.process.connection.next() {
                Ok(ControlEvent::Status(status)) => {
                    self.owes -= 1;
                    self.looks.push_back(Look::new(*status));
                    if self.looks.len() > MAX_SAMPLES {
                        self.looks.pop_front();
                    }
                }
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::TimedOut,
            }
        }
        true
    }

    fn row(&self) -> ProcessRow {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return ProcessRow::default();
        };
        let time = last.status.at_ns.saturating_sub(first.status.at_ns);
        let is_known = time >= SHORTEST;
        let mut row = ProcessRow {
            status: last.status.clone(),
            rate: rate(&first.status, &last.status).filter(|_| is_known),
            p50: last.status.p50_ns,
            ..ProcessRow::default()
        };
        let Some(figures) = &last.figures else {
            return row;
        };
        row.p50 = row.p50.or_else(|| figures.p50());
        row.p99 = figures.quantile_of(figures.durations(), 0.99);
        row.gpu = figures.gpu_share(None);
        if let Some(before) = &first.figures {
            let latest = figures.durations().since(before.durations());
            row.p50 = figures.quantile_of(&latest, 0.5).or(row.p50);
            row.p99 = figures.quantile_of(&latest, 0.99).or(row.p99);
            let a_second = |before: u64, now: u64| {
                is_known.then(|| now.saturating_sub(before) as f64 * 1e9 / time as f64)
            };
            let counted =
                |of: fn(&Figures) -> Option<u64>| a_second(of(before).unwrap_or(0), of(figures)?);
            row.waits = a_second(before.waits(), figures.waits());
            row.collections = counted(Figures::collections);
            row.handoffs = counted(Figures::handoffs);
            // While a window (a range of captured iterations) is open, GPU times arrive late; the last of them arrive
            // when the window closes. So the recent share is computed only if no window was open at the first sample,
            // and none at the last one.
            let has_open = [first, last]
                .iter()
                .any(|look| look.status.phase != Phase::Armed);
            if !has_open {
                row.gpu = figures.gpu_share(Some(before)).or(row.gpu);
            }
        }
        row
    }
}
