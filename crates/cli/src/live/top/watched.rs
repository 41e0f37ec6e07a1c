//! The processes that are watched: asked once a second, over a connection each that stays.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use tllmprof_control::{Event, Phase, Request, Status};

use crate::live::ps::rate;
use crate::live::record::Figures;
use crate::live::sockets::{self, Process};
use crate::live::targets::Targets;

/// Over how many looks rates and durations are taken.
const LOOKS: usize = 6;
/// Nanoseconds within which no rate is taken.
const SHORTEST: u64 = 100_000_000;
/// Answers that a process may owe before it is asked for no more.
const PATIENT: u32 = 5;
/// How often new processes are looked for.
const AGAIN: Duration = Duration::from_secs(2);

/// A process as it is shown.
#[derive(Clone, Default)]
pub struct Row {
    pub status: Status,
    /// Iterations a second.
    pub rate: Option<f64>,
    /// Of the latest iterations outside windows, in nanoseconds; where there are none, of all.
    pub p50: Option<u64>,
    pub p99: Option<u64>,
    /// A second.
    pub waits: Option<f64>,
    pub collections: Option<f64>,
    pub handoffs: Option<f64>,
    /// GPU time as a share of the time inside the windows that closed lately; where none did, of all so far.
    pub gpu: Option<f64>,
}

pub struct Watched {
    processes: Vec<One>,
    /// When new ones are looked for; never where some were named.
    next: Option<Instant>,
}

struct One {
    process: Process,
    /// How many answers it owes: a process that is very busy may be late.
    owes: u32,
    /// The latest last.
    looks: VecDeque<Look>,
}

struct Look {
    status: Status,
    figures: Option<Figures>,
}

impl Watched {
    /// # Errors
    /// Where one that is named does not listen.
    pub fn new(targets: &Targets) -> Result<Self> {
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

    fn add(&mut self, processes: Vec<Process>) {
        let new = processes.into_iter().map(|process| One {
            looks: VecDeque::from([Look::at(process.status.clone())]),
            process,
            owes: 0,
        });
        self.processes.extend(new);
        let order = |a: &One, b: &One| {
            sockets::order(&a.process.status).cmp(&sockets::order(&b.process.status))
        };
        self.processes.sort_by(order);
    }

    /// Asks them all. One that has ended is watched no longer.
    pub fn look(&mut self) -> Vec<Row> {
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
        for one in self.processes.iter_mut().filter(|one| one.owes < PATIENT) {
            // What becomes of it shows where it is to answer.
            let _ = one.process.connection.ask(&Request::Status);
            one.owes += 1;
        }
        self.processes.retain_mut(One::hear);
        self.processes.iter().map(One::row).collect()
    }
}

impl Look {
    fn at(status: Status) -> Self {
        let figures = Figures::of(&status);
        Self { status, figures }
    }
}

impl One {
    /// Takes what it answers; whether it is still there.
    fn hear(&mut self) -> bool {
        while self.owes > 0 {
            match self.process.connection.next() {
                Ok(Event::Status(status)) => {
                    self.owes -= 1;
                    self.looks.push_back(Look::at(*status));
                    if self.looks.len() > LOOKS {
                        self.looks.pop_front();
                    }
                }
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::TimedOut,
            }
        }
        true
    }

    fn row(&self) -> Row {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return Row::default();
        };
        let time = last.status.at_ns.saturating_sub(first.status.at_ns);
        let is_known = time >= SHORTEST;
        let mut row = Row {
            status: last.status.clone(),
            rate: rate(&first.status, &last.status).filter(|_| is_known),
            p50: last.status.p50_ns,
            ..Row::default()
        };
        let Some(figures) = &last.figures else {
            return row;
        };
        row.p50 = row.p50.or_else(|| figures.quantile(0.5));
        row.p99 = figures.quantile(0.99);
        row.gpu = figures.gpu_share(None);
        if let Some(before) = &first.figures {
            let latest = figures.durations().since(before.durations());
            let of = |share| Some(figures.ns(latest.quantile(share)?));
            row.p50 = of(0.5).or(row.p50);
            row.p99 = of(0.99).or(row.p99);
            let a_second = |before: u64, now: u64| {
                is_known.then(|| now.saturating_sub(before) as f64 * 1e9 / time as f64)
            };
            let counted =
                |of: fn(&Figures) -> Option<u64>| a_second(of(before).unwrap_or(0), of(figures)?);
            row.waits = a_second(before.waits(), figures.waits());
            row.collections = counted(Figures::collections);
            row.handoffs = counted(Figures::handoffs);
            // Times of the GPU are read late while a window is open, and the last of them where it closes.
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
