//! The second pass over a record, in which each analysis adds up its events.

use tllmprof_record::{CallKind, Clock, Counter, Entry, Header, Strings, What};

use super::first::{Edges, FirstResults};
use crate::collectives::{CollectiveTally, Collectives};
use crate::events::busy::DeviceActivity;
use crate::events::causes::SlowestIterations;
use crate::events::kernel_windows::KernelWindows;
use crate::events::launchers::Launchers;
use crate::events::launches::LaunchTally;
use crate::events::raw::RawIteration;
use crate::events::spans::{Span, Spans};
use crate::events::tally::{self, Tallied, Tally, Totals};
use crate::events::turnaround::{Turnaround, Turnarounds};
use crate::events::window::{Window, windows};
use crate::events::work::GpuWork;
use crate::iterations::joined::whole;
use crate::kernels::streams::StreamTally;
use crate::kernels::{KernelTally, Kernels};
use crate::layers::{LayerTally, Layers, RawLayers};
use crate::ledger::slow::{self, Slow, Steps};
use crate::metrics::RecordedSamples;
use crate::routing::{LayerLoad, Loads};

/// The analyses of the second pass. Each event of the record is passed to the analyses that may need it.
#[derive(Debug)]
pub(crate) struct SecondPass<'a> {
    clock: &'a Clock,
    tally: Tally<'a>,
    kernels: KernelTally<'a>,
    strings: &'a Strings,
    layers: Option<LayerTally>,
    launches: LaunchTally<'a>,
    streams: StreamTally<'a>,
    collectives: CollectiveTally<'a>,
    samples: RecordedSamples,
    loads: Loads,
    kinds: &'a [CallKind; 256],
    launchers: Launchers,
}

/// The results of all analyses that added up events in the second pass.
#[derive(Debug)]
pub(crate) struct SecondResults {
    pub totals: Totals,
    pub turnaround: Turnaround,
    pub windows: Vec<Window>,
    pub slowest: Vec<Slow>,
    pub kernels: Kernels,
    /// The work of the GPU that was busy longest; `None` if no GPU has recorded kernels.
    pub busiest: Option<DeviceActivity>,
    /// The number of the GPU that was busy longest, by recorded kernels or else by CUDA events; `None` if no work of a
    /// GPU was measured. All GPU times of iterations and of the ledger are those of this GPU.
    pub device: Option<u8>,
    pub layers: Option<Layers>,
    pub collectives: Collectives,
    pub samples: RecordedSamples,
    pub experts: Vec<LayerLoad>,
    /// The thread that launches the work of other threads' iterations; `None` if there is no such thread.
    pub launcher: Option<u32>,
    pub left_out: u64,
}

impl<'a> SecondPass<'a> {
    /// Creates the analyses, to which no event has been passed yet. `records` is the number of records that are read
    /// together, which share a limit on the memory for collectives.
    pub(crate) fn new(
        known: &'a FirstResults,
        layers: RawLayers,
        header: &Header,
        clock: &'a Clock,
        records: usize,
    ) -> Self {
        let iterations = &known.iterations;
        let is_taken = |raw: &RawIteration| known.is_taken(raw);
        let slowest = slow::slowest(iterations, &known.qualified, is_taken);
        let lacks_some = header.counter(Counter::EventsDropped) > 0;
        let ends = |raw: &RawIteration| Span {
            start: clock.ns(raw.start),
            end: clock.ns(raw.span().end),
        };
        let timeline = || Spans::new(iterations.iter().map(ends).collect());
        let is_own = known.facts.origin.is_own();
        let layers = layers.finish();
        let layers = layers.map(|raw| LayerTally::new(raw, timeline(), is_own));
        // The call that launched a kernel is needed only for layers and for the analysis of streams ([`StreamTally`]).
        // Traces of other profilers do not contain the stream of a call, so their streams are not analyzed.
        let windows = match (&layers, is_own) {
            (None, false) => KernelWindows::default(),
            _ => {
                let windows = known.stretches.iter();
                let windows = windows.filter_map(|window| span(window, iterations, clock));
                KernelWindows::new(windows.collect())
            }
        };
        let calls = &known.facts.calls;
        let own = match is_own && !lacks_some {
            true => windows.clone(),
            false => KernelWindows::default(),
        };
        let streams = StreamTally::new(clock, calls, timeline(), own);
        let launches = LaunchTally::new(clock, calls, windows, lacks_some);
        Self {
            clock,
            tally: Tally::new(
                Spans::new(iterations.iter().map(RawIteration::span).collect()),
                iterations.iter().map(|one| one.thread).collect(),
                tally::TallyInputs {
                    qualified: &known.qualified,
                    kinds: &known.kinds,
                    allocates: &known.allocates,
                    compiles: &known.compiles,
                    requests: &known.requests,
                    strings: &known.strings,
                },
                SlowestIterations::new(slowest),
                Turnarounds::new(&known.facts.calls),
            ),
            kernels: KernelTally::new(clock, iterations, &known.qualified),
            strings: &known.strings,
            layers,
            launches,
            streams,
            collectives: CollectiveTally::new(clock, &known.strings, records),
            samples: RecordedSamples::default(),
            loads: Loads::default(),
            kinds: &known.kinds,
            launchers: Launchers::default(),
        }
    }

    /// Passes an entry of the record to the analyses, if it is an event. An event about a kernel, a copy or a memory
    /// set is passed only to the analyses of GPU work and to the tally.
    pub(crate) fn take(&mut self, entry: &Entry<'_>) {
        let Entry::Event { thread, event } = entry else {
            return;
        };
        self.tally.add(*thread, event);
        if let What::Call { row, .. } = event.what
            && is_launch(self.kinds[usize::from(row)])
        {
            self.launchers.add(*thread);
        }
        if let Some(work) = GpuWork::from_event(self.clock, event) {
            self.work(*thread, &work);
            return;
        }
        if let Some(layers) = &mut self.layers {
            layers.add(*thread, event);
        }
        self.launches.add(*thread, event);
        self.streams.add(*thread, event);
        self.kernels.add(*thread, event);
        self.samples.add(self.clock, event);
        self.loads.add(event);
    }

    /// Passes a kernel, a copy or a memory set to the analyses that add up GPU work.
    fn work(&mut self, thread: u32, work: &GpuWork) {
        let counted = work.as_counted(self.strings);
        self.collectives.add_work(&counted);
        if let Some(layers) = &mut self.layers {
            layers.add_work(thread, work, &counted, self.kernels.counted(work));
        }
        // Launches and streams need the work as it was launched. For example, a kernel with which the driver copies
        // memory is a kernel in `work`, but a copy in `counted`.
        self.launches.add_work(work);
        self.streams.add_work(work);
        self.kernels.add_work(thread, &counted);
    }

    /// Ends the second pass and returns the results of each analysis.
    pub(crate) fn finish(self, known: &FirstResults, edges: Edges) -> SecondResults {
        let (clock, strings, iterations) = (self.clock, &known.strings, &known.iterations);
        let Tallied {
            inside,
            totals,
            watched,
            turnaround,
        } = self.tally.finish();
        let mut kernels = self.kernels.finish(iterations, edges.kernels, strings);
        let launches = self.launches.finish();
        let is_counted: Vec<_> = kernels.numbers.iter().map(Option::is_some).collect();
        kernels.kernels.streams = self.streams.finish(
            &launches,
            &is_counted,
            |name| self.collectives.is_one(name),
            |row| known.facts.call(row),
        );
        let collectives = self.collectives.finish(iterations);
        let layers_left_out = (self.layers.as_ref()).map_or(0, |layers| layers.left_out);
        let layers = self.layers.map(|layers| {
            let ns_of = |ticks| clock.ns(ticks);
            layers.finish(launches, strings, &kernels.numbers, ns_of)
        });
        let by_kernels = kernels.busiest.as_ref().map(|busiest| busiest.device);
        let device = by_kernels.or_else(|| known.gpu.busiest());
        let gpu = device.map_or_else(Vec::new, |device| known.gpu.times_of(device));
        kernels.forget_missing(iterations, &gpu);
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
        let makes = |thread| iterations.iter().any(|one| one.thread == thread);
        let launcher = self.launchers.of_others(makes);
        let slowest = slow::slow(steps, watched, &totals, &known.facts, strings, clock);
        let iterations = whole(
            iterations,
            &inside,
            &kernels.iterations,
            &gpu,
            &known.batches,
            &known.qualified,
            clock,
        );
        SecondResults {
            totals,
            turnaround,
            windows: windows(edges.windows, iterations, &edges.pasts),
            slowest,
            kernels: kernels.kernels,
            busiest: kernels.busiest,
            device,
            layers,
            collectives,
            samples: self.samples.finish(strings),
            experts: self.loads.finish(),
            launcher,
            left_out,
        }
    }
}

/// Returns true if a call launches a kernel or a graph.
const fn is_launch(kind: CallKind) -> bool {
    matches!(kind, CallKind::GraphLaunch | CallKind::KernelLaunch)
}

/// Returns the time span from the start of a window's first iteration to the end of its last
/// iteration, in nanoseconds; `None` if the window has no iterations.
fn span(window: &Window, iterations: &[RawIteration], clock: &Clock) -> Option<(u64, u64)> {
    let is_in = |raw: &&RawIteration| (window.first..=window.last).contains(&raw.n);
    let mut spans = iterations.iter().filter(is_in).map(RawIteration::span);
    let first = spans.next()?;
    let end = spans.fold(first.end, |end, span| end.max(span.end));
    Some((clock.ns(first.start), clock.ns(end)))
}
