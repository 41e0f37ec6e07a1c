//! The first pass over a record: facts, iterations, windows, and what the second pass looks events up in.

use std::collections::{HashMap, HashSet};

use tllmprof_engines::sleeps_for_requests;
use tllmprof_record::{Batch, CallKind, Clock, Entry, Header, Strings, What};

use crate::events::facts::{CallRow, Facts, Found};
use crate::events::gpu_spans::{GpuSpan, GpuSpans};
use crate::events::iteration::Used;
use crate::events::qualify::{self, Qualified};
use crate::events::raw::{self, RawBatch, RawIteration};
use crate::events::requests::{Candidates, Requests};
use crate::events::samples::{RawStacks, Sampled};
use crate::events::spans::Span;
use crate::events::window::{Window, WindowEdge, pairs};
use crate::layers::RawLayers;

/// How many iterations and edges of windows are kept; more are counted.
const ITERATIONS: usize = 1 << 20;
const EDGES: usize = 1 << 16;

#[derive(Debug, Default)]
pub struct First {
    pub found: Found,
    pub iterations: Vec<RawIteration>,
    pub batches: Vec<RawBatch>,
    /// Of windows, and of those in which kernels are taken.
    pub edges: Vec<WindowEdge>,
    pub kernel_edges: Vec<WindowEdge>,
    /// The first iterations of windows of the past.
    pub pasts: HashSet<u64>,
    pub gpu: GpuSpans,
    pub requests: Candidates,
    pub stacks: RawStacks,
    pub layers: RawLayers,
    /// What threads used of the machine, by iteration.
    pub used: HashMap<u32, Used>,
    pub left_out: u64,
}

impl First {
    pub fn take(&mut self, clock: &Clock, entry: &Entry<'_>) {
        self.found.take(entry);
        let Entry::Event { thread, event } = *entry else {
            return;
        };
        self.requests.take(&self.found, thread, &event);
        self.stacks.take(clock, &event);
        self.layers.take(thread, &event);
        match event.what {
            What::Iteration { n, excluded } if self.iterations.len() < ITERATIONS => {
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
            What::Window { edge, iteration } | What::KernelWindow { edge, iteration } => {
                let edges = match event.what {
                    What::Window { .. } => &mut self.edges,
                    _ => &mut self.kernel_edges,
                };
                if edges.len() == EDGES {
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
            What::Past { iteration } if self.pasts.len() < EDGES => {
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
            What::Batch { iteration, batch } if self.batches.len() < ITERATIONS => {
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
            } if self.used.len() < ITERATIONS => {
                let used = self.used.entry(iteration).or_default();
                used.add(what, event.duration, count);
            }
            What::Iteration { .. } | What::Batch { .. } => self.left_out += 1,
            _ => (),
        }
    }
}

/// What the passes after the first one know of a record.
#[derive(Debug)]
pub struct Known {
    pub facts: Facts,
    pub strings: Strings,
    /// In the order of their starts.
    pub iterations: Vec<RawIteration>,
    /// What was in the batch of each.
    pub batches: Vec<Option<Batch>>,
    pub qualified: Qualified,
    pub requests: Requests,
    pub sampled: Sampled,
    /// When the GPU had nothing to do, by events.
    pub idle: Vec<Span>,
    /// GPU times of iterations, by their numbers.
    pub gpu: Vec<(u64, u64)>,
    /// Of each row of the table of calls.
    pub kinds: [CallKind; 256],
    pub allocates: [bool; 256],
    /// The windows in which kernels are taken.
    pub stretches: Vec<Window>,
    pub left_out: u64,
}

/// What the second pass uses up.
#[derive(Debug)]
pub struct Edges {
    pub windows: Vec<WindowEdge>,
    pub kernels: Vec<WindowEdge>,
    pub pasts: HashSet<u64>,
}

impl First {
    /// Ends the pass.
    pub fn finish(self, header: &Header, clock: &Clock) -> (Known, Edges, RawLayers) {
        let mut iterations = self.iterations;
        iterations.sort_by_key(|iteration| iteration.start);
        for iteration in &mut iterations {
            iteration.used = self.used.get(&(iteration.n as u32)).copied();
        }
        let idle = self.gpu.idle();
        let measured = (!idle.is_empty()).then_some(&idle[..]);
        let (facts, strings) = self.found.facts(header);
        let ran = |thread, moment| {
            let after = iterations.partition_point(|iteration| iteration.start <= moment);
            let of = iterations[..after].last();
            let of = of.filter(|of| of.thread == thread)?;
            Some((of.span().end, of.used?.ran))
        };
        let sleeps = sleeps_for_requests(&facts.engine);
        let requests = (self.requests).finish(measured, sleeps.then_some(&ran), clock);
        for iteration in &mut iterations {
            (iteration.idle, iteration.idle_calls) =
                requests.within(iteration.thread, iteration.span());
        }
        let batches = raw::batches(&iterations, &self.batches);
        let known = iterations.iter().zip(&batches);
        let known = known.map(|(iteration, batch)| qualify::Known {
            marked: iteration.excluded,
            batch: *batch,
            cut: iteration.cut,
        });
        let qualified = Qualified::of(&facts.asked.condition, known);
        let left_out = self.left_out + self.stacks.left_out + self.gpu.left_out;
        let edges = Edges {
            windows: self.edges,
            kernels: self.kernel_edges,
            pasts: self.pasts,
        };
        let known = Known {
            sampled: self.stacks.finish(&facts, &strings),
            kinds: by_row(&facts, CallKind::Other, |row| row.kind),
            allocates: by_row(&facts, false, CallRow::allocates),
            stretches: pairs(edges.kernels.clone()),
            gpu: self.gpu.times(),
            facts,
            strings,
            iterations,
            batches,
            qualified,
            requests,
            idle,
            left_out,
        };
        (known, edges, self.layers)
    }
}

/// Something of each row of the table of calls.
fn by_row<T: Copy>(facts: &Facts, none: T, of: impl Fn(&CallRow) -> T) -> [T; 256] {
    let mut all = [none; 256];
    for row in &facts.calls {
        all[usize::from(row.row)] = of(row);
    }
    all
}

impl Known {
    /// Whether an iteration lies in a window in which kernels are taken.
    pub fn is_taken(&self, raw: &RawIteration) -> bool {
        let mut of = self.stretches.iter();
        of.any(|of| (of.first..=of.last).contains(&raw.n))
    }
}
