//! The second pass over a record: each analysis adds its events up.

use tllmprof_record::{Clock, Counter, Entry, Header};

use super::first::{Edges, Known};
use crate::collectives::{CollectiveTally, Found as Collectives};
use crate::events::busy::Did;
use crate::events::causes::Watched;
use crate::events::launches::LaunchTally;
use crate::events::raw::RawIteration;
use crate::events::spans::{Span, Spans};
use crate::events::tally::{self, Tallied, Tally, Totals};
use crate::events::turnaround::{Turnaround, Turnarounds};
use crate::events::window::{Window, windows};
use crate::events::work::GpuWork;
use crate::iterations::joined::whole;
use crate::kernels::{KernelTally, Kernels};
use crate::layers::{LayerTally, Layers, RawLayers};
use crate::ledger::slow::{self, Slow, Steps};
use crate::metrics::{MetricSample, Samples};
use crate::routing::{LayerLoad, Loads};

/// The observers of this pass.
#[derive(Debug)]
pub struct Second<'a> {
    clock: &'a Clock,
    tally: Tally<'a>,
    kernels: KernelTally<'a>,
    layers: Option<(LayerTally, LaunchTally<'a>)>,
    collectives: CollectiveTally<'a>,
    samples: Samples,
    loads: Loads,
}

/// What they found.
#[derive(Debug)]
pub struct Counted {
    pub totals: Totals,
    pub turnaround: Turnaround,
    pub windows: Vec<Window>,
    pub slowest: Vec<Slow>,
    pub kernels: Kernels,
    /// What the device did that was at work longest.
    pub busiest: Option<Did>,
    pub layers: Option<Layers>,
    pub collectives: Collectives,
    pub samples: Vec<MetricSample>,
    pub experts: Vec<LayerLoad>,
    pub left_out: u64,
}

impl<'a> Second<'a> {
    /// `records`: so many are read together.
    pub fn new(
        known: &'a Known,
        layers: RawLayers,
        header: &Header,
        clock: &'a Clock,
        records: usize,
    ) -> Self {
        let iterations = &known.iterations;
        let is_taken = |raw: &RawIteration| known.is_taken(raw);
        let slowest = slow::slowest(iterations, &known.qualified, is_taken);
        let lacks_some = header.counter(Counter::EventsDropped) > 0;
        // Which call launched a kernel matters to layers alone here.
        let layers = layers.finish().map(|raw| {
            let windows = known.stretches.iter();
            let windows = windows.filter_map(|window| span(window, iterations, clock));
            let calls = &known.facts.calls;
            let launches = LaunchTally::new(clock, calls, windows.collect(), lacks_some);
            let ends = |raw: &RawIteration| Span {
                start: clock.ns(raw.start),
                end: clock.ns(raw.span().end),
            };
            let spans = Spans::new(iterations.iter().map(ends).collect());
            (LayerTally::new(raw, spans), launches)
        });
        Self {
            clock,
            tally: Tally::new(
                Spans::new(iterations.iter().map(RawIteration::span).collect()),
                iterations.iter().map(|one| one.thread).collect(),
                tally::Known {
                    qualified: &known.qualified,
                    kinds: &known.kinds,
                    allocates: &known.allocates,
                    requests: &known.requests,
                    strings: &known.strings,
                },
                Watched::new(slowest),
                Turnarounds::new(&known.facts.calls),
            ),
            kernels: KernelTally::new(clock, iterations, &known.qualified),
            layers,
            collectives: CollectiveTally::new(clock, &known.strings, records),
            samples: Samples::default(),
            loads: Loads::default(),
        }
    }

    /// Shows an entry to each.
    pub fn take(&mut self, entry: &Entry<'_>) {
        let Entry::Event { thread, event } = entry else {
            return;
        };
        self.tally.add(*thread, event);
        if let Some(work) = GpuWork::of(self.clock, event) {
            self.work(*thread, &work);
            return;
        }
        if let Some((layers, launches)) = &mut self.layers {
            layers.add(*thread, event);
            launches.add(*thread, event);
        }
        self.kernels.add(*thread, event);
        self.samples.add(self.clock, event);
        self.loads.add(event);
    }

    /// Shows work of a GPU to those that add it up.
    fn work(&mut self, thread: u32, work: &GpuWork) {
        self.collectives.add_work(work);
        if let Some((layers, launches)) = &mut self.layers {
            layers.add_work(thread, work, self.kernels.counted(work));
            launches.add_work(work);
        }
        self.kernels.add_work(thread, work);
    }

    /// Ends the pass.
    pub fn finish(self, known: &Known, edges: Edges) -> Counted {
        let (clock, strings, iterations) = (self.clock, &known.strings, &known.iterations);
        let Tallied {
            inside,
            totals,
            watched,
            turnaround,
        } = self.tally.finish();
        let collectives = self.collectives.finish(iterations);
        let mut kernels = self.kernels.finish(iterations, edges.kernels, strings);
        let layers_left_out = (self.layers.as_ref()).map_or(0, |(layers, _)| layers.left_out);
        let layers = self.layers.map(|(layers, launches)| {
            let ns_of = |ticks| clock.ns(ticks);
            layers.finish(launches.finish(), strings, &kernels.numbers, ns_of)
        });
        kernels.forget_missing(iterations, &known.gpu);
        let left_out = layers_left_out
            + totals.left_out
            + kernels.left_out
            + self.samples.left_out
            + self.loads.left_out
            + collectives.left_out
            + strings.left_out();
        let steps = Steps {
            iterations,
            batches: &known.batches,
            qualified: &known.qualified,
        };
        let slowest = slow::slow(steps, watched, &totals, &known.facts, strings, clock);
        let iterations = whole(
            iterations,
            &inside,
            &kernels.iterations,
            &known.gpu,
            &known.batches,
            &known.qualified,
            clock,
        );
        Counted {
            totals,
            turnaround,
            windows: windows(edges.windows, iterations, &edges.pasts),
            slowest,
            kernels: kernels.kernels,
            busiest: kernels.busiest,
            layers,
            collectives,
            samples: self.samples.samples,
            experts: self.loads.finish(),
            left_out,
        }
    }
}

/// From the start of a window's first iteration to the end of its last one, in nanoseconds.
fn span(window: &Window, iterations: &[RawIteration], clock: &Clock) -> Option<(u64, u64)> {
    let is_in = |raw: &&RawIteration| (window.first..=window.last).contains(&raw.n);
    let mut spans = iterations.iter().filter(is_in).map(RawIteration::span);
    let first = spans.next()?;
    let end = spans.fold(first.end, |end, span| end.max(span.end));
    Some((clock.ns(first.start), clock.ns(end)))
}
