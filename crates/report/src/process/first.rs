//! What the first way through a record finds: what there is little of.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{Clock, Entry, What};

use crate::events::facts::Found;
use crate::events::gpu_spans::{GpuSpan, GpuSpans};
use crate::events::iteration::Used;
use crate::events::raw::{RawBatch, RawIteration};
use crate::events::requests::Candidates;
use crate::events::samples::RawStacks;
use crate::events::window::WindowEdge;
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
