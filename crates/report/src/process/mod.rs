//! A record, interpreted: what happened in one process.

pub mod first;
pub mod state;
pub mod uncounted;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use tllmprof_engines::sleeps_for_requests;
use tllmprof_record::{CallKind, Clock, ClockKind, Counter, Damage, Ended, Entry, Header};

use crate::batches::{self, PhaseSum};
use crate::collectives::{CollectiveTally, Found as Collectives};
use crate::events::causes::Watched;
use crate::events::facts::{CallRow, Facts, name, range_name};
use crate::events::iteration::GpuFrom;
use crate::events::launches::LaunchTally;
use crate::events::qualify::{self, Qualified};
use crate::events::raw;
use crate::events::raw::RawIteration;
use crate::events::recording::Recording;
use crate::events::spans::{Span, Spans};
use crate::events::tally::{Known, Tallied, Tally, Total, Totals};
use crate::events::turnaround::{Turnaround, Turnarounds};
use crate::events::window::{Window, pairs, windows};
use crate::iterations::joined::whole;
use crate::iterations::sum::Sum;
use crate::iterations::unqualified::{self, UnqualifiedSum};
use crate::kernels::{KernelTally, Kernels};
use crate::layers::{LayerTally, Layers};
use crate::ledger::slow::{self, Slow, Steps};
use crate::ledger::{Claims, Groups, HostLedger, Ledger, Named as Names};
use crate::metrics::{self, MetricSample, MetricSum, Samples};
use crate::routing::LayerLoad;
use crate::routing::Loads;
use crate::stacks::Stacks;
use first::First;

/// How long, in nanoseconds, a processor's counter has to be held against time before its durations are
/// known to some parts in a hundred thousand: an anchor is right to some ten.
const TIED: u64 = 500_000;

/// What happened in a process. Times are in nanoseconds, moments of `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct Process {
    /// The record's file, where it is one.
    pub file: PathBuf,
    pub pid: u32,
    pub parent: u32,
    pub ended: Option<Ended>,
    pub facts: Facts,
    pub windows: Vec<Window>,
    /// Over all windows; `None` where they have no iterations that count.
    pub sum: Option<Sum>,
    /// Those of the batches, where they are known.
    pub phases: Vec<PhaseSum>,
    /// The iterations of windows that do not count in figures.
    pub unqualified: Vec<UnqualifiedSum>,
    pub outside: Outside,
    /// Where the time of its iterations goes.
    pub ledger: Ledger,
    /// The same of each window.
    pub window_ledgers: Vec<Ledger>,
    /// What findings may claim of it.
    pub claims: Claims,
    /// What the threads of iterations ran, where that was sampled.
    pub stacks: Stacks,
    /// The slowest iterations first.
    pub slowest: Vec<Slow>,
    /// Of calls that were made inside windows, by row.
    pub calls: Vec<Named>,
    /// By generation.
    pub gc: Vec<Named>,
    pub collected: u64,
    pub gil_wait: Named,
    pub gil_hold: Named,
    pub gil_forced: u64,
    /// What each thread held the GIL.
    pub holds: BTreeMap<u32, u64>,
    pub gil_handoffs: u64,
    /// The longest in all first.
    pub functions: Vec<Named>,
    pub ranges: Vec<Named>,
    pub kernels: Kernels,
    /// Whose time those took; `None` where scopes were not followed.
    pub layers: Option<Layers>,
    /// Inside windows, by device and metric. [`Report::new`](crate::Report::new) adds what other
    /// records of the same machine hold.
    pub metrics: Vec<MetricSum>,
    /// What its ranks do together, of what was taken.
    pub(crate) collectives: Collectives,
    /// GPU metrics that this record itself holds.
    pub metric_samples: Vec<MetricSample>,
    /// What the GPU had nothing to do after host waits.
    pub turnaround: Turnaround,
    /// What the layers' learned routers sent to their experts.
    pub experts: Vec<LayerLoad>,
    pub events: u64,
    /// Events that the recorder did not keep, besides kernels.
    pub dropped: u64,
    /// Iterations of windows among those: others had begun when they would have been written.
    pub passed: u64,
    /// Windows that made room for later ones, and how many bytes the record could take.
    pub windows_dropped: u64,
    pub keep: u64,
    /// What the recorder itself took from the program's threads inside windows.
    pub own_cost: u64,
    /// GPU times that could not be read.
    pub gpu_lost: u64,
    /// The clock was held against `CLOCK_MONOTONIC` for so short a time that durations are unsure.
    pub tied_briefly: Option<u64>,
    /// Nanoseconds since 1970 less `CLOCK_MONOTONIC`.
    pub unix_minus_monotonic: i64,
    pub damage: Damage,
    /// Things that were too many to be kept here.
    pub left_out: u64,
}

/// The iterations outside windows, by a histogram (within 1.6 %).
#[derive(Clone, Copy, Debug)]
pub struct Outside {
    pub iterations: u64,
    pub p50: Option<u64>,
    pub p90: Option<u64>,
    pub p99: Option<u64>,
    pub max: Option<u64>,
}

/// So many of something.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Named {
    pub name: String,
    pub count: u64,
    pub total: u64,
    pub longest: u64,
}

impl Named {
    /// How long each took on average.
    #[must_use]
    pub const fn mean(&self) -> u64 {
        match self.total.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

impl Process {
    /// Reads a record, or what another tool recorded.
    ///
    /// # Errors
    /// Where its source cannot be read.
    pub fn read(file: PathBuf, recording: &impl Recording) -> io::Result<Self> {
        Self::read_among(file, recording, 1)
    }

    /// The same of one of so many `records`, which share the memory that there is for their collectives.
    ///
    /// # Errors
    /// Where its source cannot be read.
    pub fn read_among(
        file: PathBuf,
        recording: &impl Recording,
        records: usize,
    ) -> io::Result<Self> {
        let header = recording.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut first = First::default();
        recording.read(|entry| first.take(&clock, &entry))?;
        let First {
            found,
            mut iterations,
            batches,
            edges,
            kernel_edges,
            pasts,
            gpu,
            requests,
            stacks,
            layers,
            used,
            left_out,
        } = first;
        iterations.sort_by_key(|iteration| iteration.start);
        for iteration in &mut iterations {
            iteration.used = used.get(&(iteration.n as u32)).copied();
        }
        let by_events = gpu.idle();
        let known = (!by_events.is_empty()).then_some(&by_events[..]);
        let (mut facts, strings) = found.facts(header);
        let ran = |thread, moment| {
            let after = iterations.partition_point(|iteration| iteration.start <= moment);
            let of = iterations[..after]
                .last()
                .filter(|of| of.thread == thread)?;
            Some((of.span().end, of.used?.ran))
        };
        let sleeps = sleeps_for_requests(&facts.engine);
        let requests = requests.finish(known, sleeps.then_some(&ran), &clock);
        for iteration in &mut iterations {
            (iteration.idle, iteration.idle_calls) =
                requests.within(iteration.thread, iteration.span());
        }
        let left_out = left_out + stacks.left_out;
        let sampled = stacks.finish(&facts, &strings);
        let (kinds, allocates) = (kinds(&facts.calls), allocates(&facts.calls));
        let batches = raw::batches(&iterations, &batches);
        let known = iterations.iter().zip(&batches);
        let known = known.map(|(iteration, batch)| qualify::Known {
            marked: iteration.excluded,
            batch: *batch,
            cut: iteration.cut,
        });
        let qualified = Qualified::of(&facts.condition, known);
        let timeline = Spans::new(iterations.iter().map(RawIteration::span).collect());
        let stretches = pairs(kernel_edges.clone());
        let is_taken = |raw: &RawIteration| {
            let mut of = stretches.iter();
            of.any(|of| (of.first..=of.last).contains(&raw.n))
        };
        let mut tally = Tally::new(
            timeline,
            iterations
                .iter()
                .map(|iteration| iteration.thread)
                .collect(),
            Known {
                qualified: &qualified,
                kinds: &kinds,
                allocates: &allocates,
                requests: &requests,
                strings: &strings,
            },
            Watched::new(slow::slowest(&iterations, &qualified, is_taken)),
            Turnarounds::new(&facts.calls),
        );
        let mut kernels = KernelTally::new(&clock, &iterations, &qualified);
        let mut samples = Samples::default();
        let mut loads = Loads::default();
        // Which call launched a kernel matters to layers alone here.
        let lacks_some = header.counter(Counter::EventsDropped) > 0;
        let mut layers = layers.finish().map(|raw| {
            let spans = stretches.iter().filter_map(|of| {
                let of = |raw: &&RawIteration| (of.first..=of.last).contains(&raw.n);
                let mut of = iterations.iter().filter(of).map(RawIteration::span);
                let first = of.next()?;
                let end = of.fold(first.end, |end, span| end.max(span.end));
                Some((clock.ns(first.start), clock.ns(end)))
            });
            let launches = LaunchTally::new(&clock, &facts.calls, spans.collect(), lacks_some);
            let ends = |raw: &RawIteration| Span {
                start: clock.ns(raw.start),
                end: clock.ns(raw.span().end),
            };
            let spans = Spans::new(iterations.iter().map(ends).collect());
            (LayerTally::new(raw, spans), launches)
        });
        let mut collectives = CollectiveTally::new(&clock, &strings, records);
        let damage = recording.read(|entry| {
            if let Entry::Event { thread, event } = &entry {
                tally.add(*thread, event);
                collectives.add(event);
                if let Some((layers, launches)) = &mut layers {
                    layers.add(*thread, event, || kernels.counted(event));
                    launches.add(*thread, event);
                }
                kernels.add(*thread, event);
                samples.add(&clock, event);
                loads.add(event);
            }
        })?;
        let Tallied {
            inside,
            totals,
            watched,
            turnaround,
        } = tally.finish();
        for row in &mut facts.calls {
            // What is no record of ours has no counters.
            row.inside = row.inside.max(totals.calls[usize::from(row.row)].count);
        }
        let collectives = collectives.finish(&iterations);
        let gpu_left_out = gpu.left_out;
        let gpu = gpu.times();
        let mut kernels = kernels.finish(&iterations, kernel_edges, &strings);
        let layers = layers.map(|(layers, launches)| {
            let left_out = layers.left_out;
            let (of, steps) = (|ticks| clock.ns(ticks), &kernels.numbers);
            let layers = layers.finish(launches.finish(), &strings, steps, of);
            (layers, left_out)
        });
        let layers_left_out = layers.as_ref().map_or(0, |(_, left_out)| *left_out);
        kernels.forget_missing(&iterations, &gpu);
        let ns = Ns {
            rate: clock.ns_per_tick(),
        };
        // What is missing of kernels is reported with them.
        let kernels_dropped = (kernels.kernels.window.as_ref()).map_or(0, |sum| sum.dropped);
        let left_out = left_out
            + gpu_left_out
            + layers_left_out
            + totals.left_out
            + kernels.left_out
            + samples.left_out
            + loads.left_out
            + collectives.left_out
            + strings.left_out();
        let mut slowest = slow::slow(
            Steps {
                iterations: &iterations,
                batches: &batches,
                qualified: &qualified,
            },
            watched,
            &totals,
            &facts,
            &strings,
            &clock,
        );
        let windows = windows(
            edges,
            whole(
                &iterations,
                &inside,
                &kernels.iterations,
                gpu,
                &batches,
                &qualified,
                &clock,
            ),
            &pasts,
        );
        let sum = Sum::of(&windows);
        let gpu_from = sum.map_or(GpuFrom::Plain, |sum| sum.gpu_from);
        let did = kernels.busiest.as_ref();
        let idle = match did.filter(|_| gpu_from == GpuFrom::Kernels) {
            Some(did) => &did.idle,
            None => &by_events,
        };
        // A third way through the record: what the host did while the GPU had nothing to do.
        let slow: Vec<_> = slowest.iter().map(|slow| (slow.n, slow.start)).collect();
        let mut groups = Groups::of(&windows, gpu_from, &slow);
        if let Some(did) = did.filter(|_| gpu_from == GpuFrom::Kernels) {
            groups.ran(did);
        }
        let mut host = HostLedger::new(groups.placed.iter().copied(), idle);
        let places = groups.places(&host.sample(&sampled, &requests));
        if sum.is_some() {
            recording.read(|entry| {
                if let Entry::Event { thread, event } = &entry {
                    host.add(&clock, &requests, *thread, event);
                }
            })?;
        }
        let spent = host.finish();
        let names = Names {
            facts: &facts,
            strings: &strings,
            frames: &sampled.frames,
        };
        let ledger_of = |window| groups.ledger(window, &spent, names);
        let ledger = ledger_of(None);
        let claims = groups.claims(&spent, names);
        let window_ledgers = (0..windows.len()).map(Some).map(ledger_of).collect();
        for (place, slow) in slowest.iter_mut().enumerate() {
            let differences = groups.differences(place, &spent, slow.holder(), names);
            slow.explain(differences);
        }
        let took = spent.worked(&groups.hosts(None));
        let rate = facts.stacks_rate;
        let stacks = Stacks::of(sampled, rate, windows.len(), &places, took);
        // What takes no longer than others like it, nor than most, is not slow.
        let median = sum.map_or(0, |sum| sum.time.p50);
        slowest.retain(|slow| slow.more > 0 || slow.busy() > median);
        slowest.sort_by_key(|slow| std::cmp::Reverse((slow.more, slow.busy())));
        // Where a window closes the recorder has counted these.
        let unclosed = windows.iter().filter(|window| !window.closed);
        let gaps = match damage.is_none() {
            true => unclosed.map(Window::gaps).fold(0, u64::saturating_add),
            false => 0,
        };
        let middle = iterations
            .get(iterations.len() / 2)
            .map_or(u64::MAX, |i| clock.ns(i.start));
        Ok(Self {
            file,
            pid: header.pid,
            parent: header.parent,
            ended: header.ended,
            sum,
            ledger,
            window_ledgers,
            claims,
            stacks,
            phases: batches::phases(&windows),
            unqualified: unqualified::unqualified(&windows),
            outside: Outside::of(header, &ns),
            slowest,
            calls: calls(&facts, &totals, &ns),
            gc: (0..)
                .zip(&totals.gc)
                .filter(|(_, total)| total.count > 0)
                .map(|(generation, total)| ns.named(format!("gen{generation}"), total))
                .collect(),
            collected: totals.collected,
            gil_wait: ns.named("GIL wait".to_owned(), &totals.gil_wait),
            gil_hold: ns.named("GIL hold".to_owned(), &totals.gil_hold),
            gil_forced: totals.gil_forced,
            holds: totals
                .holds
                .iter()
                .map(|(tid, ticks)| (*tid, ns.of(*ticks)))
                .collect(),
            gil_handoffs: header.counter(Counter::GilHandoffs),
            functions: ranked(
                totals
                    .functions
                    .iter()
                    .map(|(id, total)| ns.named(name(strings.get(*id)), total)),
            ),
            ranges: ranked(totals.ranges.iter().map(|((domain, name), total)| {
                ns.named(range_name(&strings, *domain, *name), total)
            })),
            kernels: kernels.kernels,
            layers: layers.map(|(layers, _)| layers),
            metrics: metrics::inside(samples.samples.iter(), &windows),
            collectives,
            metric_samples: samples.samples,
            turnaround: Turnaround {
                after_waits: ns.of(turnaround.after_waits),
                after_copies: ns.of(turnaround.after_copies),
                ..turnaround
            },
            experts: loads.finish(),
            events: totals.events,
            dropped: header
                .counter(Counter::EventsDropped)
                .max(totals.dropped.saturating_sub(kernels_dropped))
                .saturating_add(gaps),
            passed: header.counter(Counter::IterationsPassed),
            windows_dropped: header.counter(Counter::WindowsDropped),
            keep: header.counter(Counter::Keep),
            own_cost: ns.of(header.counter(Counter::OwnTicks)),
            gpu_lost: header.counter(Counter::GpuSpansLost),
            tied_briefly: (header.clock == ClockKind::Counter)
                .then(|| clock.tied_ns())
                .filter(|tied| *tied < TIED),
            unix_minus_monotonic: clock.unix_minus_monotonic(middle),
            damage,
            left_out,
            facts,
            windows,
        })
    }
}

impl Process {
    /// Finds which call launched a kernel. `clock` is that of the record that the process was read from.
    #[must_use]
    pub fn launches<'a>(&self, clock: &'a Clock) -> LaunchTally<'a> {
        let mut windows = Vec::new();
        for window in &self.windows {
            let runs = window
                .iterations
                .chunk_by(|a, b| a.gpu_busy.is_some() == b.gpu_busy.is_some());
            let taken = runs.filter(|run| run[0].gpu_busy.is_some());
            windows.extend(taken.map(|run| (run[0].start, run[run.len() - 1].end())));
        }
        LaunchTally::new(clock, &self.facts.calls, windows, self.dropped > 0)
    }

    /// Whether it is the record of a GPU's metrics and of no program's iterations.
    pub fn is_metrics_alone(&self) -> bool {
        !self.metric_samples.is_empty() && self.sum.is_none()
    }

    /// Adds what other records of the same boot, whose clocks are the same, measured.
    pub fn attach(&mut self, measured: &[Self]) {
        let is_same =
            |other: &&Self| !other.facts.boot.is_empty() && other.facts.boot == self.facts.boot;
        let others = measured.iter().filter(is_same);
        let samples = others.flat_map(|other| &other.metric_samples);
        self.metrics = metrics::inside(self.metric_samples.iter().chain(samples), &self.windows);
    }

    /// What the recorder itself took from the program's threads, of the time of windows; `None` where there is none.
    #[must_use]
    pub fn own_share(&self) -> Option<f64> {
        let walls = self.windows.iter().map(Window::wall);
        let wall = walls.fold(0, u64::saturating_add);
        (wall > 0).then(|| self.own_cost as f64 / wall as f64)
    }
}

/// Ticks over the whole record in nanoseconds.
struct Ns {
    rate: f64,
}

impl Ns {
    fn of(&self, ticks: u64) -> u64 {
        if self.rate == 1.0 {
            ticks
        } else {
            (ticks as f64 * self.rate) as u64
        }
    }

    fn named(&self, name: String, total: &Total) -> Named {
        Named {
            name,
            count: total.count,
            total: self.of(total.ticks),
            longest: self.of(total.longest),
        }
    }
}

impl Outside {
    fn of(header: &Header, ns: &Ns) -> Self {
        let histogram = &header.outside;
        let quantile = |share| histogram.quantile(share).map(|ticks| ns.of(ticks));
        Self {
            iterations: histogram.count(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: (histogram.count() > 0).then(|| ns.of(histogram.max())),
        }
    }
}

fn allocates(rows: &[CallRow]) -> [bool; 256] {
    let mut all = [false; 256];
    for row in rows {
        all[usize::from(row.row)] = row.allocates();
    }
    all
}

fn kinds(rows: &[CallRow]) -> [CallKind; 256] {
    let mut kinds = [CallKind::Other; 256];
    for row in rows {
        kinds[usize::from(row.row)] = row.kind;
    }
    kinds
}

fn calls(facts: &Facts, totals: &Totals, ns: &Ns) -> Vec<Named> {
    ranked(
        (0..=u8::MAX)
            .zip(totals.calls.iter())
            .filter(|(_, total)| total.count > 0)
            .map(|(row, total)| ns.named(facts.call(row), total)),
    )
}

/// Totals of the same name together, the longest first.
fn ranked(named: impl Iterator<Item = Named>) -> Vec<Named> {
    let mut by_name: HashMap<String, Named> = HashMap::new();
    for more in named {
        let Named {
            count,
            total,
            longest,
            ..
        } = more;
        let sum = by_name.entry(more.name.clone()).or_insert_with(|| Named {
            name: more.name,
            ..Named::default()
        });
        sum.count += count;
        sum.total = sum.total.saturating_add(total);
        sum.longest = sum.longest.max(longest);
    }
    let mut ranked: Vec<_> = by_name.into_values().collect();
    ranked.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    ranked
}
