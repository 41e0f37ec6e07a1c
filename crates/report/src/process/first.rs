//! The first pass over a record. It collects data about the process, iterations and windows, and
//! the tables that the later passes need.

use std::collections::{HashMap, HashSet};

use tllmprof_engines::sleeps_for_requests;
use tllmprof_record::{Batch, CallKind, Clock, Counter, Entry, Header, Strings, What};

use crate::events::certain_idle::CertainIdle;
use crate::events::facts::{CallCount, Facts, RawFacts};
use crate::events::gpu_spans::{GpuSpan, GpuSpans};
use crate::events::iteration::Used;
use crate::events::origin::Data;
use crate::events::qualify::{self, Qualified};
use crate::events::raw::{self, RawBatch, RawIteration};
use crate::events::requests::{Candidates, Requests};
use crate::events::samples::{RawStacks, Sampled};
use crate::events::spans::Span;
use crate::events::window::{Window, WindowEdge, pairs};
use crate::layers::RawLayers;
use crate::process::last;

/// Maximum number of iterations to store, and maximum number of their batches. Further iterations and batches are only
/// counted.
const MAX_ITERATIONS: usize = 1 << 20;
/// Maximum number of openings and closings of windows to store. Further openings and closings are only counted. The
/// same maximum applies to windows with recorded kernels, and to the lists [`FirstPass::pasts`] and
/// [`FirstPass::outside`].
const MAX_EDGES: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct FirstPass {
    pub found: RawFacts,
    pub iterations: Vec<RawIteration>,
    pub batches: Vec<RawBatch>,
    /// The events at which windows opened or closed.
    pub edges: Vec<WindowEdge>,
    /// The events at which windows with recorded kernels opened or closed.
    pub kernel_edges: Vec<WindowEdge>,
    /// The windows that contain iterations from before the window was requested, because the flight recorder kept them.
    /// Each entry is the number of the window's first iteration.
    pub pasts: HashSet<u64>,
    pub gpu: GpuSpans,
    pub certain_idle: CertainIdle,
    pub requests: Candidates,
    pub stacks: RawStacks,
    pub layers: RawLayers,
    /// The end of the latest CUDA call, in ticks; 0 if there was none.
    pub last_call: u64,
    /// Processor time and page faults of the iteration's thread, by number of the iteration.
    pub used: HashMap<u32, Used>,
    /// Histogram of the times of iterations that lie outside windows and before the last automatic window, that is,
    /// the last window that tllmprof opened by itself. Each entry is the index of a bucket and its number of
    /// iterations. The buckets are those of the histogram in the record's header.
    pub outside: Vec<(u16, u64)>,
    pub left_out: u64,
}

impl FirstPass {
    pub(crate) fn take(&mut self, clock: &Clock, entry: &Entry<'_>) {
        self.found.take(entry);
        let Entry::Event { thread, event } = *entry else {
            return;
        };
        self.certain_idle.take(&self.found, thread, &event);
        let gives_work = self.requests.take(&self.found, clock, thread, &event);
        if gives_work {
            self.stacks.take_work(clock, thread, &event);
        }
        self.stacks.take(clock, thread, &event);
        self.layers.take(thread, &event);
        match event.what {
            What::Call { .. } => {
                let end = event.start.saturating_add(event.duration);
                self.last_call = self.last_call.max(end);
            }
            What::Iteration { n, excluded } if self.iterations.len() < MAX_ITERATIONS => {
                self.iterations.push(RawIteration {
                    start: event.start,
                    duration: event.duration,
                    n,
                    thread,
                    cut: event.cut,
                    idle: 0,
                    idle_calls: 0,
                    used: None,
                    excluded,
                });
            }
            What::OutsideBefore { bucket, iterations } if self.outside.len() < MAX_EDGES => {
                self.outside.push((bucket, iterations));
            }
            What::Window { edge, iteration } | What::KernelWindow { edge, iteration } => {
                let edges = match event.what {
                    What::Window { .. } => &mut self.edges,
                    _ => &mut self.kernel_edges,
                };
                if edges.len() == MAX_EDGES {
                    self.left_out += 1;
                    return;
                }
                let (ticks, cut) = (event.start, event.cut);
                edges.push(WindowEdge {
                    ticks,
                    edge,
                    iteration,
                    cut,
                });
            }
            What::Past { iteration } if self.pasts.len() < MAX_EDGES => {
                self.pasts.insert(iteration);
            }
            What::GpuSpan {
                device, iteration, ..
            } => self.gpu.add(GpuSpan {
                iteration,
                device,
                start: clock.ns(event.start),
                duration: event.duration,
            }),
            What::Batch { iteration, batch } if self.batches.len() < MAX_ITERATIONS => {
                self.batches.push(RawBatch {
                    start: event.start,
                    iteration,
                    batch,
                });
            }
            What::Used {
                what: Some(what),
                iteration,
                count,
            } if self.used.len() < MAX_ITERATIONS => {
                let used = self.used.entry(iteration).or_default();
                used.add(what, event.duration, count);
            }
            What::Iteration { .. } | What::Batch { .. } => self.left_out += 1,
            _ => (),
        }
    }
}

/// Results of the first pass that the later passes need.
#[derive(Debug)]
pub(crate) struct FirstResults {
    pub facts: Facts,
    pub strings: Strings,
    /// All iterations of the record, in the order of their starts.
    pub iterations: Vec<RawIteration>,
    /// The batch of each iteration; `None` if it is not known.
    pub batches: Vec<Option<Batch>>,
    pub qualified: Qualified,
    pub requests: Requests,
    pub sampled: Sampled,
    /// The times of the GPUs' work, as CUDA events measured them.
    pub gpu: GpuSpans,
    /// Times in which the GPU certainly had no work, in order. Empty if its work was measured.
    pub certain_idle: Vec<Span>,
    /// For each row of the record's table of CUDA functions, the kind of its calls, such as kernel launches.
    pub kinds: [CallKind; 256],
    /// For each row of the record's table of CUDA functions, true if the function allocates or frees memory.
    pub allocates: [bool; 256],
    /// For each row of the record's table of CUDA functions, true if the function loads or compiles code.
    pub compiles: [bool; 256],
    /// The windows in which kernels were recorded.
    pub stretches: Vec<Window>,
    /// Histogram of the times of iterations that lie outside windows and before the last automatic window (a window
    /// that tllmprof opened by itself). See [`FirstPass::outside`].
    pub outside: Vec<(u16, u64)>,
    pub left_out: u64,
}

/// The openings and closings of windows. The second pass consumes them.
#[derive(Debug)]
pub(crate) struct Edges {
    pub windows: Vec<WindowEdge>,
    pub kernels: Vec<WindowEdge>,
    pub pasts: HashSet<u64>,
}

impl FirstPass {
    /// Ends the first pass: sorts the iterations, replaces ids by strings, and returns the results.
    pub(crate) fn finish(
        mut self,
        header: &Header,
        clock: &Clock,
    ) -> (FirstResults, Edges, RawLayers) {
        if header.counter(Counter::EventsDropped) > 0 {
            self.certain_idle.give_up();
        }
        let mut iterations = self.iterations;
        iterations.sort_by_key(|iteration| iteration.start);
        for iteration in &mut iterations {
            let used = self.used.get(&(iteration.n as u32));
            iteration.used = used.map(|used| used.within(iteration.duration));
        }
        let (facts, strings) = self.found.facts(header);
        let is_span = facts.origin.is_own() && facts.origin.lacks(Data::Iterations);
        if is_span {
            last::end_span_at_call(&mut iterations, self.last_call, header);
        }
        let ran = |thread, moment| {
            let after = iterations.partition_point(|iteration| iteration.start <= moment);
            let of = iterations[..after].last();
            let of = of.filter(|of| of.thread == thread)?;
            Some((of.span().end, of.used?.ran))
        };
        let sleeps = sleeps_for_requests(&facts.engine);
        let requests = (self.requests).finish(&self.gpu.idle(), sleeps.then_some(&ran), clock);
        for iteration in &mut iterations {
            (iteration.idle, iteration.idle_calls) =
                requests.within(iteration.thread, iteration.span());
        }
        // A span of time that stands for iterations is not an iteration that the user asked for. So the end of the
        // process does not cut it off.
        if !is_span {
            let asked = &facts.asked.windows;
            last::mark_cut(&mut iterations, &self.edges, asked, header, clock);
        }
        let batches = raw::batches(&iterations, &self.batches);
        let known = iterations.iter().zip(&batches);
        let known = known.map(|(iteration, batch)| qualify::IterationCandidate {
            marked: iteration.excluded,
            batch: *batch,
            cut: iteration.cut,
        });
        let qualified = Qualified::new(&facts.asked.condition, known);
        let left_out = self.left_out + self.stacks.left_out + self.gpu.left_out;
        let edges = Edges {
            windows: self.edges,
            kernels: self.kernel_edges,
            pasts: self.pasts,
        };
        let known = FirstResults {
            sampled: self.stacks.finish(&facts, &strings),
            kinds: by_row(&facts, CallKind::Other, |row| row.kind),
            allocates: by_row(&facts, false, CallCount::allocates),
            compiles: by_row(&facts, false, CallCount::compiles),
            stretches: pairs(edges.kernels.clone()),
            outside: self.outside,
            gpu: self.gpu,
            certain_idle: self
                .certain_idle
                .finish(facts.software.known_gpus().len() == 1, clock),
            facts,
            strings,
            iterations,
            batches,
            qualified,
            requests,
            left_out,
        };
        (known, edges, self.layers)
    }
}

/// Returns a property of each row of the record's table of CUDA functions; `none` for rows that the record does not
/// use.
fn by_row<T: Copy>(facts: &Facts, none: T, of: impl Fn(&CallCount) -> T) -> [T; 256] {
    let mut all = [none; 256];
    for row in &facts.calls {
        all[usize::from(row.row)] = of(row);
    }
    all
}

impl FirstResults {
    /// Returns true if an iteration lies in a window in which kernels were recorded.
    pub(crate) fn is_taken(&self, raw: &RawIteration) -> bool {
        let mut of = self.stretches.iter();
        of.any(|of| (of.first..=of.last).contains(&raw.n))
    }
}
