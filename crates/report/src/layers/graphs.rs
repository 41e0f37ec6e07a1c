//! Launches of CUDA graphs: which graph each launch ran, and how long the GPU took for it, according to recorded
//! kernels.

use std::collections::HashMap;

use super::raw::CapturedGraph;
use crate::events::launches::Launches;
use crate::events::spans::Span;

/// Maximum number of graph launches to store. Further launches are left out.
const MAX_RUNS: usize = 1 << 20;

/// A launch of a CUDA graph whose call is known. All recorded kernels of the launch belong to a known graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GraphRun {
    /// The number of the captured graph whose nodes ran. Executable graphs from the same capture have the same number.
    pub graph: u32,
    /// The thread that launched the graph.
    pub thread: u32,
    /// Start of the launching call, in nanoseconds.
    pub launched: u64,
    /// Time from the start of the graph's first kernel to the end of its last, in nanoseconds.
    pub ns: u64,
}

/// The kernels of one graph launch that were seen so far.
#[derive(Clone, Copy, Debug)]
struct SeenKernels {
    graph: u32,
    count: u32,
    start: u64,
    end: u64,
}

/// Collects the kernels of graph launches during a pass over a record.
#[derive(Debug)]
pub(super) struct GraphTally {
    /// False if the record does not have the program's numbers of executable graphs, as in traces of other profilers.
    /// Then nothing is collected.
    has_numbers: bool,
    /// The key is the number of the executable graph, the end of the time in which the number means this graph (in
    /// ticks), and the correlation number of the launch. Graph numbers and correlation numbers may be used again in a
    /// later window, so the end of that time is part of the key.
    runs: HashMap<(u32, u64, u32), SeenKernels>,
}

impl GraphTally {
    pub(super) fn new(has_numbers: bool) -> Self {
        let runs = HashMap::new();
        Self { has_numbers, runs }
    }

    /// Adds a kernel of the executable graph with the number `exec`. `graph` is its captured graph. `kernel` is the
    /// time in which the kernel ran, in nanoseconds.
    pub(super) fn add(
        &mut self,
        exec: u32,
        graph: Option<CapturedGraph>,
        correlation: u32,
        kernel: Span,
    ) {
        let Some(graph) = graph.filter(|_| self.has_numbers) else {
            return;
        };
        let key = (exec, graph.until, correlation);
        if self.runs.len() >= MAX_RUNS && !self.runs.contains_key(&key) {
            return;
        }
        let seen = self.runs.entry(key).or_insert(SeenKernels {
            graph: graph.number,
            count: 0,
            start: kernel.start,
            end: kernel.end,
        });
        seen.count = seen.count.saturating_add(1);
        seen.start = seen.start.min(kernel.start);
        seen.end = seen.end.max(kernel.end);
    }

    /// Returns the launches whose calls are known and all of whose recorded kernels were added, in the order of the
    /// calls.
    pub(super) fn finish(self, launches: &Launches) -> Vec<GraphRun> {
        let run = |((_, _, correlation), seen): ((u32, u64, u32), SeenKernels)| {
            let launch = launches.of_kernel(correlation, seen.start)?;
            let is_whole = launch.is_graph && launch.kernels == seen.count;
            is_whole.then_some(GraphRun {
                graph: seen.graph,
                thread: launch.thread,
                launched: launch.start,
                ns: seen.end - seen.start,
            })
        };
        let mut runs: Vec<_> = self.runs.into_iter().filter_map(run).collect();
        runs.sort_unstable_by_key(|run| (run.launched, run.thread));
        runs
    }
}
