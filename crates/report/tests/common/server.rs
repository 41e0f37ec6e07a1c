//! A made-up server, recorded: what happened in it is known to the nanosecond.

#![allow(dead_code)] // each user takes its part

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, CallKind, ClockKind, Counter, Edge, Ended, Event, Info, RangeKind, StringId, What,
};

pub const MS: u64 = 1_000_000;
pub const US: u64 = 1_000;

/// Ticks of the made-up processor's counter in a nanosecond.
const TICKS: u64 = 2;
/// What its counter said when the machine was started.
const OFFSET: u64 = 12_345_678;
/// Nanoseconds since 1970 less `CLOCK_MONOTONIC`.
pub const UNIX: u64 = 1_700_000_000_000_000_000;

const START: u64 = 1000 * MS;

const GRAPH: u8 = 0;
const KERNEL: u8 = 1;
const COPY: u8 = 4;
const WAIT: u8 = 8;

/// A rank of the server.
pub struct Server {
    pub rank: u64,
    /// Its window, and how many iterations came before.
    pub window: std::ops::RangeInclusive<u64>,
    /// Kernels that each iteration launches besides its graph.
    pub kernels: u64,
}

/// An iteration as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truth {
    pub n: u64,
    pub start: u64,
    pub duration: u64,
    pub gpu: u64,
    pub launches: u64,
    pub wait: u64,
    pub gil_wait: u64,
    pub gc: u64,
}

struct Writing {
    builder: Builder,
    names: Names,
    ids: [u32; 2],
}

struct Names {
    step: StringId,
    forward: StringId,
    engine: StringId,
    own: StringId,
    iteration: StringId,
}

impl Server {
    pub const fn rank(rank: u64) -> Self {
        Self {
            rank,
            window: 100..=150,
            kernels: 3,
        }
    }

    pub const fn pid(&self) -> u32 {
        4000 + self.rank as u32
    }

    /// How long iteration `n` takes: rank 2 is slow, and each rank has a bad one.
    fn duration(&self, n: u64) -> u64 {
        let usual = 10 * MS + n % 10 * 100 * US;
        let slow = if self.rank == 2 { MS } else { 0 };
        usual + slow + self.gc(n) + self.gil(n)
    }

    /// A full collection in iteration 107 of rank 1, small ones in every tenth.
    const fn gc(&self, n: u64) -> u64 {
        match (self.rank, n) {
            (1, 107) => 30 * MS,
            _ if n.is_multiple_of(10) => 200 * US,
            _ => 0,
        }
    }

    /// A long wait for the GIL in iteration 112 of rank 0, short ones in every fifth.
    const fn gil(&self, n: u64) -> u64 {
        match (self.rank, n) {
            (0, 112) => 12 * MS,
            _ if n.is_multiple_of(5) => 40 * US,
            _ => 0,
        }
    }

    fn truth(&self, n: u64, start: u64) -> Truth {
        Truth {
            n,
            start,
            duration: self.duration(n),
            gpu: 8 * MS + n % 7 * 10 * US,
            launches: 1 + self.kernels,
            wait: 4 * MS,
            gil_wait: self.gil(n),
            gc: self.gc(n),
        }
    }

    /// The record, and what is in its window.
    pub fn record(&self) -> (Builder, Vec<Truth>) {
        let main = self.pid();
        let mut builder = Builder::new(self.pid(), ClockKind::Counter);
        let names = Names {
            step: builder.string(main, "Scheduler.step"),
            forward: builder.string(main, "forward"),
            engine: builder.string(main, "engine"),
            own: builder.string(main, "tllmprof"),
            iteration: builder.string(main, "iteration"),
        };
        let mut writing = Writing {
            builder,
            names,
            ids: [main, main + 1000],
        };
        writing.anchor(START);
        self.facts(&mut writing);
        let mut truths = Vec::new();
        let mut now = START;
        for n in 0..=*self.window.end() {
            let truth = self.truth(n, now);
            now += truth.duration;
            if n < *self.window.start() {
                writing
                    .builder
                    .header()
                    .outside()
                    .add(truth.duration * TICKS);
            } else {
                if n == *self.window.start() {
                    writing.edge(truth.start, Edge::Open, n);
                }
                writing.iteration(&truth, self.kernels);
                truths.push(truth);
            }
        }
        writing.edge(now, Edge::Close, *self.window.end());
        writing.anchor(now + MS);
        let header = writing.builder.header();
        header.set(Counter::Iterations, self.window.end() + 1);
        header.set(Counter::OwnTicks, 50 * US * TICKS);
        header.set(Counter::GilHandoffs, 1000);
        header.set(Counter::CallsInside(GRAPH), truths.len() as u64);
        header.set(Counter::CallsOutside(GRAPH), *self.window.start());
        header.set_ended(Ended::InOrder);
        (writing.builder, truths)
    }

    fn facts(&self, writing: &mut Writing) {
        let main = writing.ids[0];
        for (key, text) in [
            (
                Info::CommandLine,
                "python -m server --model tiny --port 8000",
            ),
            (Info::Host, "gpu7"),
            (Info::Rule, "cudaGraphLaunch"),
            (Info::RuleWhy, "asked for"),
            (Info::Version, "0.1.0"),
            (Info::Python, "3.12.1"),
            (Info::Gpu, "NVIDIA H200"),
            (Info::Process, "python"),
            (Info::Boot, "a-boot"),
        ] {
            let id = writing.builder.string(main, text);
            writing.put(
                0,
                START,
                0,
                What::Info {
                    key: Some(key),
                    value: u64::from(id),
                },
            );
        }
        writing.put(
            0,
            START,
            0,
            What::Info {
                key: Some(Info::Rank),
                value: self.rank,
            },
        );
        for (row, kind, name) in [
            (GRAPH, CallKind::GraphLaunch, "cuGraphLaunch"),
            (KERNEL, CallKind::KernelLaunch, "cuLaunchKernel"),
            (COPY, CallKind::AsyncCopy, "cuMemcpyDtoHAsync_v2"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
        ] {
            let name = writing.builder.string(main, name);
            writing.put(
                0,
                START,
                0,
                What::CallName {
                    row,
                    kind: Some(kind),
                    name,
                },
            );
        }
        for (thread, name) in ["python", "sampler"].into_iter().enumerate() {
            let name = writing.builder.string(writing.ids[thread], name);
            writing.put(thread, START, 0, What::ThreadName { name });
        }
    }
}

impl Writing {
    fn anchor(&self, ns: u64) {
        let anchor = Anchor {
            ticks: ns * TICKS + OFFSET,
            monotonic_ns: ns,
            unix_ns: ns + UNIX,
        };
        self.builder.header().anchor(anchor);
    }

    /// Writes an event of the server's first or second thread.
    fn put(&mut self, thread: usize, at: u64, long: u64, what: What) {
        let duration = if matches!(what, What::GpuSpan { .. }) {
            long
        } else {
            long * TICKS
        };
        let event = Event::new(at * TICKS + OFFSET, duration, what);
        self.builder.push(self.ids[thread], &event);
    }

    fn edge(&mut self, at: u64, edge: Edge, iteration: u64) {
        self.put(0, at, 0, What::Window { edge, iteration });
    }

    fn iteration(&mut self, truth: &Truth, kernels: u64) {
        let (start, n) = (truth.start, truth.n);
        let call = |row| What::Call {
            row,
            capturing: false,
            stream: 0x7f00,
        };
        self.put(0, start + 10 * US, 20 * US, call(GRAPH));
        for kernel in 0..kernels {
            self.put(1, start + 40 * US + kernel * US / 2, US / 2, call(KERNEL));
        }
        // One that a stream capture takes up launches nothing.
        let captured = What::Call {
            row: KERNEL,
            capturing: true,
            stream: 0x7f00,
        };
        self.put(1, start + 3 * MS, US, captured);
        self.put(1, start + 3 * MS + 10 * US, 2 * US, call(COPY));
        let mut at = start + 100 * US;
        if truth.gc > 0 {
            let generation = if truth.gc > MS { 2 } else { 0 };
            self.put(
                1,
                at,
                truth.gc,
                What::Gc {
                    generation,
                    collected: 7,
                },
            );
            at += truth.gc;
        }
        if truth.gil_wait > 0 {
            self.put(0, at, truth.gil_wait, What::GilWait);
        }
        self.put(1, at, truth.gil_wait + 5 * US, What::GilHold);
        self.put(1, at, 0, What::GilForced);
        // The other thread's waits are not this iteration's.
        self.put(1, start + 4 * MS, 3 * MS, call(WAIT));
        let end = start + truth.duration;
        self.put(0, end - truth.wait, truth.wait, call(WAIT));
        let Names {
            step,
            forward,
            engine,
            own,
            iteration,
        } = self.names;
        let range = |domain, name| What::Range {
            kind: RangeKind::PushPop,
            domain,
            name,
        };
        self.put(0, start + US, 5 * MS, range(engine, forward));
        self.put(0, start, truth.duration, range(own, iteration));
        self.put(0, start, truth.duration - 10, What::Function { name: step });
        self.put(0, start, truth.duration, What::Iteration { n });
        // Two streams at once, and the GPU is at work until the wait ends.
        let gpu = |stream| What::GpuSpan {
            device: 0,
            stream,
            iteration: n,
        };
        self.put(1, end - truth.gpu, truth.gpu, gpu(1));
        self.put(1, end - MS, 900 * US, gpu(2));
    }
}
