//! What the rules look at: figures of one process, in parts of the iterations' time.

use tllmprof_record::Metric;

use crate::events::facts::CallRow;
use crate::events::iteration::GpuFrom;
use crate::events::iteration::Iteration;
use crate::events::named::Named;
use crate::events::window::Window;
use crate::iterations::sum::Sum;
use crate::ledger::LedgerKind;
use crate::ledger::slow::LARGE;
use crate::numbers::quantiles::Quantiles;
use crate::process::Process;
use crate::process::state::State;

/// What an iteration has to take, of the median, to be a slow one.
const SLOW: f64 = 1.5;

/// How much longer an iteration takes at most in which kernels are taken: of graphs of tiny kernels, on an H200.
const SLOWED: f64 = 1.7;

/// A process that has iterations.
pub struct Evidence<'a> {
    pub process: &'a Process,
    /// Its place among all.
    pub place: usize,
    pub sum: &'a Sum,
    /// What distinguishes it from the others; empty where it is the only one.
    pub who: String,
}

/// Calls of some rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    pub count: u64,
    pub total: u64,
}

/// What launches take in the median iteration: one that something else held up says nothing about them.
#[derive(Clone, Copy, Debug)]
pub struct Launching {
    /// Of the time.
    pub share: f64,
    /// Of one launch, in nanoseconds.
    pub mean: u64,
}

/// What the kernels of a process show.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// In an iteration.
    pub kernels: f64,
    /// What a kernel takes, in nanoseconds.
    pub mean: u64,
    /// Between two pieces of work of an iteration, of the time.
    pub gaps: f64,
    /// At work, of the time.
    pub busy: Busy,
    /// Copies between host and device, of the time.
    pub copies: f64,
}

/// What a GPU was at, as a whole, in parts of what it can.
#[derive(Clone, Copy, Debug)]
pub struct Metrics {
    pub sm: Option<f64>,
    pub bandwidth: Option<f64>,
    /// The time in which any kernel ran.
    pub busy: Option<f64>,
}

impl<'a> Evidence<'a> {
    /// Of those that have iterations.
    pub fn of(processes: &'a [Process], names: &[String]) -> Vec<Self> {
        let named = processes.iter().zip(names).enumerate();
        let with = named.filter_map(|(place, (process, name))| {
            Some(Self {
                process,
                place,
                sum: process.sum.as_ref()?,
                who: name.clone(),
            })
        });
        let mut with: Vec<_> = with.collect();
        if let [one] = &mut with[..] {
            one.who.clear();
        }
        with
    }

    /// Those that count.
    pub fn iterations(&self) -> impl Iterator<Item = &'a Iteration> + use<'a> {
        let windows = &self.process.windows;
        windows.iter().flat_map(Window::qualified)
    }

    /// What shares of the time are of that leave out waiting for requests.
    pub const fn worked(&self) -> &'static str {
        match self.sum.totals.idle {
            0 => "the time",
            _ => "the time without waits for requests",
        }
    }

    /// In how many iterations something was measured, in words; nothing where it was in all.
    pub fn measured_in(&self, some: u64) -> String {
        match self.sum.iterations {
            all if some > 0 && some < all => format!(" (measured in {some} of {all})"),
            _ => String::new(),
        }
    }

    /// A part of the iterations' time, at most all of it.
    pub fn share(&self, ns: u64) -> f64 {
        self.sum.share(ns).min(1.0)
    }

    pub fn calls(&self, belongs: impl Fn(&CallRow) -> bool) -> Calls {
        let rows = &self.process.facts.calls;
        let is_one = |call: &&Named| {
            let mut same = rows.iter().filter(|row| row.name == call.name);
            same.any(&belongs)
        };
        let calls = self.process.calls.calls.iter().filter(is_one);
        calls.fold(Calls::default(), |sum, call| Calls {
            count: sum.count + call.count,
            total: sum.total.saturating_add(call.total),
        })
    }

    pub fn launching(&self) -> Launching {
        let millionths = self.iterations().map(|iteration| {
            let share = iteration.launching as f64 / iteration.busy().max(1) as f64;
            (share.min(1.0) * 1e6) as u64
        });
        let launch = self.iterations().filter(|iteration| iteration.launches > 0);
        let means = launch.map(|iteration| iteration.launching / u64::from(iteration.launches));
        Launching {
            share: Quantiles::of(millionths).map_or(0.0, |shares| shares.p50 as f64 / 1e6),
            mean: Quantiles::of(means).map_or(0, |means| means.p50),
        }
    }

    /// What the host's waits take of the time without waiting for requests, as the ledger has it.
    pub fn waits(&self) -> f64 {
        let ledger = &self.process.ledger;
        let worked = 1.0 - ledger.host_share(LedgerKind::Requests);
        match worked > 0.0 {
            true => (ledger.host_share(LedgerKind::Wait) / worked).min(1.0),
            false => 0.0,
        }
    }

    /// What is lost in iterations to something that takes `part` of each, and how much of what the slow ones
    /// take beyond the median is that. A wait for the GPU at the same time hides it.
    pub fn lost(&self, part: impl Fn(&Iteration) -> u64) -> Lost {
        // What captures take is theirs.
        let captured = self.iterations().filter(|iteration| iteration.captures > 0);
        let few = captured.count() * 2 <= self.iterations().count();
        self.beyond(|iteration| {
            let host = iteration.busy().saturating_sub(iteration.wait);
            match few && iteration.captures > 0 {
                true => 0,
                false => part(iteration).min(host),
            }
        })
    }

    /// What iterations take longer in which a graph is captured: more than the median of those like them.
    pub fn captures(&self) -> Lost {
        let usual = |taken: bool| {
            let like = self.iterations().filter(|iteration| {
                iteration.captures == 0 && iteration.gpu_busy.is_some() == taken
            });
            Quantiles::of(like.map(Iteration::busy)).map(|times| times.p50)
        };
        let (with, without) = (usual(true), usual(false));
        self.beyond(|iteration| {
            let usual = match iteration.gpu_busy {
                Some(_) => with,
                None => without,
            };
            match iteration.captures {
                0 => 0,
                _ => usual.map_or(0, |usual| iteration.busy().saturating_sub(usual)),
            }
        })
    }

    /// What iterations take longer than the median whose batches are far larger than others.
    pub fn large_batches(&self) -> Lost {
        let tokens = |iteration: &Iteration| iteration.batch.map(|batch| u64::from(batch.tokens));
        let all = || self.iterations().filter_map(tokens);
        let mean = all().sum::<u64>() / (all().count() as u64).max(1);
        let usual = self.sum.time.p50;
        self.beyond(|iteration| match tokens(iteration) {
            Some(tokens) if tokens > LARGE * mean => iteration.busy().saturating_sub(usual),
            _ => 0,
        })
    }

    fn beyond(&self, part: impl Fn(&Iteration) -> u64) -> Lost {
        let usual = self.sum.time.p50;
        let slow = (usual as f64 * SLOW) as u64;
        let mut lost = Lost::default();
        let (mut beyond, mut explained) = (0_u64, 0_u64);
        for iteration in self.iterations() {
            let part = part(iteration);
            lost.total = lost.total.saturating_add(part);
            if iteration.busy() > slow {
                let more = iteration.busy() - usual;
                lost.slow += 1;
                lost.hit += u64::from(part >= more / 2);
                beyond = beyond.saturating_add(more);
                explained = explained.saturating_add(part.min(more));
            }
        }
        if beyond > 0 {
            lost.of_slow = explained as f64 / beyond as f64;
        }
        lost
    }

    /// What its kernels show, where they were taken.
    pub fn kernels(&self) -> Option<Kernels> {
        let taken = self.process.kernels.window.as_ref()?;
        // Nor do kernels whose times are not known show a GPU at work.
        let busy_ns = taken.busy.filter(|busy| *busy > 0)?;
        let wall = taken.wall as f64;
        // What is missing would look like a GPU that does nothing.
        let is_whole =
            self.process.state() != State::Damaged && taken.dropped <= taken.kernels / 100;
        if wall == 0.0 || !is_whole {
            return None;
        }
        let all = self.process.kernels.totals.iter();
        let (count, total) = all.fold((0_u64, 0_u64), |(count, total), kernel| {
            (count + kernel.count, total.saturating_add(kernel.total))
        });
        let copies = self.process.kernels.copies.iter();
        let copies = copies.filter(|copy| ["HtoD", "DtoH"].contains(&copy.kind.as_str()));
        let copying = copies.fold(0_u64, |sum, copy| sum.saturating_add(copy.total));
        let of = |wall: f64| (busy_ns as f64 / wall).min(1.0);
        let busy = match self.sum.without_kernels {
            // Those that were not slowed down.
            Some(time) => Busy::ByKernels(of(wall.min(time.mean as f64 * taken.iterations as f64))),
            None => Busy::Between(of(wall), of(wall / SLOWED)),
        };
        Some(Kernels {
            kernels: taken.a_step(taken.kernels),
            mean: total.checked_div(count).unwrap_or(0),
            gaps: taken.share(taken.gaps.unwrap_or(0)),
            busy,
            copies: taken.share(copying),
        })
    }

    /// What the GPU is at work of the time.
    pub fn busy(&self) -> Option<Busy> {
        let by_events = |from| self.sum.gpu_of_busy.filter(|_| self.sum.gpu_from == from);
        let sampled = || self.metrics().and_then(|metrics| metrics.busy);
        match (
            by_events(GpuFrom::Plain),
            self.kernels().map(|kernels| kernels.busy),
        ) {
            // What events bound is at most so long at work: kernels show the gaps in it.
            (Some(events), Some(Busy::ByKernels(kernels))) if kernels < events => {
                Some(Busy::ByKernels(kernels))
            }
            (Some(events), _) => Some(Busy::Is(events)),
            (None, Some(kernels)) => Some(kernels),
            (None, None) => match by_events(GpuFrom::Stretched) {
                Some(events) => Some(Busy::Between(events, (events * SLOWED).min(1.0))),
                None => sampled().map(Busy::Is),
            },
        }
    }

    /// Those of the device that has most to do.
    pub fn metrics(&self) -> Option<Metrics> {
        let all = || self.process.metrics.sums.iter();
        let of = |metric| all().filter(move |sum| sum.metric == metric);
        let most = of(Metric::SmUtil)
            .max_by(|a, b| a.mean.total_cmp(&b.mean))
            .or_else(|| of(Metric::GpuUtil).max_by(|a, b| a.mean.total_cmp(&b.mean)))?;
        let part = |metric| {
            let mut sums = of(metric).filter(|sum| sum.device == most.device);
            Some(sums.next()?.mean / 100.0)
        };
        Some(Metrics {
            sm: part(Metric::SmUtil),
            bandwidth: part(Metric::DramBandwidth),
            busy: part(Metric::GpuUtil),
        })
    }
}

/// How long a GPU is at work, of the time.
#[derive(Clone, Copy, Debug)]
pub enum Busy {
    Is(f64),
    /// Its kernels, of the time of iterations that recording them did not slow down.
    ByKernels(f64),
    /// All iterations were slowed down.
    Between(f64, f64),
}

impl Busy {
    /// At most so much of the time.
    pub const fn most(self) -> f64 {
        match self {
            Self::Is(share) | Self::ByKernels(share) | Self::Between(_, share) => share,
        }
    }
}

/// What is lost to something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    pub total: u64,
    /// Iterations that took far longer than the median, those it was to blame for, and the part of what
    /// all of them took longer that it explains.
    pub slow: u64,
    pub hit: u64,
    pub of_slow: f64,
}
