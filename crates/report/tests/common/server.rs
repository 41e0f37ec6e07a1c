//! The record of a simulated server, whose times the tests know exactly.

#![allow(dead_code)] // each test file uses only a part of this module

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, CallKind, ClockKind, CopyKind, Counter, Edge, Ended, Event, Info, Metric, RangeKind,
    StringId, What,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const US: u64 = 1_000;

/// Ticks per nanosecond of the simulated processor's counter.
const TICKS: u64 = 2;
/// Value of the processor's counter when the machine starts.
const OFFSET: u64 = 12_345_678;
/// Converts a time in nanoseconds to ticks of the simulated processor's counter.
pub(crate) const fn ticks(ns: u64) -> u64 {
    ns * TICKS + OFFSET
}
/// Unix time minus `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) const UNIX: u64 = 1_700_000_000_000_000_000;

const START: u64 = 1000 * MS;

/// Length of each sample of GPU metrics, in nanoseconds.
pub(crate) const SAMPLE: u64 = 100 * MS;

/// The mangled name of a kernel that the server runs.
const GEMM: &str = "_ZN7cutlass7Kernel2I40cutlass_80_tensorop_s1688gemm_128x128_32EEvNT_6ParamsE";

const GRAPH: u8 = 0;
const KERNEL: u8 = 1;
const COPY: u8 = 4;
const WAIT: u8 = 8;

/// A rank of the simulated server.
pub(crate) struct Server {
    pub rank: u64,
    /// Numbers of the iterations in the window. Earlier iterations are outside windows.
    pub window: std::ops::RangeInclusive<u64>,
    /// Number of kernels that each iteration launches in addition to its graph.
    pub kernels: u64,
    /// Numbers of the iterations in which kernels are recorded. Each of them records `kernels` launched kernels and one
    /// kernel of the graph.
    pub taken: std::ops::RangeInclusive<u64>,
    /// Returns true for iterations that the record marks as not satisfying the user's condition.
    pub excluded: fn(u64) -> bool,
}

/// The true figures of an iteration, with which tests compare the report. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Truth {
    pub n: u64,
    pub start: u64,
    pub duration: u64,
    pub gpu: u64,
    pub launches: u64,
    pub wait: u64,
    pub gil_wait: u64,
    pub gc: u64,
    /// GPU busy time from kernels; `None` if kernels are not recorded in the iteration.
    pub busy: Option<u64>,
}

struct RecordWriter {
    builder: Builder,
    names: NameIds,
    /// IDs of the server's two threads, and of the thread that records kernels.
    ids: [u32; 3],
}

struct NameIds {
    step: StringId,
    forward: StringId,
    engine: StringId,
    own: StringId,
    iteration: StringId,
    gemm: StringId,
    graph: StringId,
}

impl Server {
    pub(crate) const fn rank(rank: u64) -> Self {
        Self {
            rank,
            window: 100..=150,
            kernels: 3,
            taken: 100..=119,
            excluded: |_| false,
        }
    }

    pub(crate) const fn pid(&self) -> u32 {
        4000 + self.rank as u32
    }

    /// Returns the duration of iteration `n` in nanoseconds. All iterations of rank 2 are slow;
    /// ranks 0 and 1 have one slow iteration each.
    fn duration(&self, n: u64) -> u64 {
        let usual = 10 * MS + n % 10 * 100 * US;
        let slow = if self.rank == 2 { MS } else { 0 };
        usual + slow + self.gc(n) + self.gil(n)
    }

    /// Returns the time of garbage collections in iteration `n`, in nanoseconds. Iteration 107 of
    /// rank 1 has a full collection, and every tenth iteration a small one.
    const fn gc(&self, n: u64) -> u64 {
        match (self.rank, n) {
            (1, 107) => 30 * MS,
            _ if n.is_multiple_of(10) => 200 * US,
            _ => 0,
        }
    }

    /// Returns the time of waits for the GIL in iteration `n`, in nanoseconds. Iteration 112 of
    /// rank 0 has a long wait, and every fifth iteration a short one.
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
            gpu: Self::gpu(n),
            launches: 1 + self.kernels,
            wait: 4 * MS,
            gil_wait: self.gil(n),
            gc: self.gc(n),
            busy: self.taken.contains(&n).then(|| {
                let (pieces, _, long) = self.pieces(n);
                pieces * long
            }),
        }
    }

    const fn gpu(n: u64) -> u64 {
        8 * MS + n % 7 * 10 * US
    }

    /// Returns three numbers for an iteration: the number of its pieces of GPU work (a memory set,
    /// kernels, a copy), and, in nanoseconds, the time between their starts and the duration of
    /// each piece.
    const fn pieces(&self, n: u64) -> (u64, u64, u64) {
        let pieces = self.kernels + 2;
        let apart = Self::gpu(n) / pieces;
        (pieces, apart, apart * 3 / 4)
    }

    /// Returns the record, and the true figures of the iterations inside its window.
    pub(crate) fn record(&self) -> (Builder, Vec<Truth>) {
        let main = self.pid();
        let mut builder = Builder::new(self.pid(), ClockKind::Counter);
        let names = NameIds {
            step: builder.string(main, "Scheduler.step"),
            forward: builder.string(main, "forward"),
            engine: builder.string(main, "engine"),
            own: builder.string(main, "tllmprof"),
            iteration: builder.string(main, "iteration"),
            gemm: builder.string(main, GEMM),
            graph: builder.string(main, "nvjet_tst_128x64_h_bz_TNT"),
        };
        let mut writer = RecordWriter {
            builder,
            names,
            ids: [main, main + 1000, main + 2000],
        };
        writer.anchor(START);
        self.facts(&mut writer);
        let mut truths = Vec::new();
        let mut now = START;
        for n in 0..=*self.window.end() {
            let truth = self.truth(n, now);
            now += truth.duration;
            if n < *self.window.start() {
                writer
                    .builder
                    .header()
                    .outside()
                    .add(truth.duration * TICKS);
            } else {
                if n == *self.window.start() {
                    writer.edge(truth.start, Edge::Open, n);
                }
                if n == *self.taken.start() {
                    writer.kernel_edge(truth.start, Edge::Open, n);
                }
                writer.iteration(&truth, self.kernels, (self.excluded)(n));
                if truth.busy.is_some() {
                    writer.kernels(&truth, self.pieces(n));
                }
                if n == *self.taken.end() {
                    writer.kernel_edge(now, Edge::Close, n);
                }
                truths.push(truth);
            }
        }
        writer.edge(now, Edge::Close, *self.window.end());
        writer.anchor(now + MS);
        let header = writer.builder.header();
        header.set(Counter::Iterations, self.window.end() + 1);
        header.set(Counter::OwnTicks, 50 * US * TICKS);
        header.set(Counter::GilHandoffs, 1000);
        header.set(Counter::CallsInside(GRAPH), truths.len() as u64);
        header.set(Counter::CallsOutside(GRAPH), *self.window.start());
        writer.builder.end(Ended::InOrder);
        (writer.builder, truths)
    }

    /// Returns the record of the metrics of two GPUs, from the start of the server to the time
    /// `until`.
    pub(crate) fn metrics(&self, until: u64) -> Builder {
        let pid = 9000;
        let mut builder = Builder::new(pid, ClockKind::Monotonic);
        for (key, text) in [(Info::Host, "gpu7"), (Info::Boot, "a-boot")] {
            let value = u64::from(builder.string(pid, text));
            let key = Some(key);
            builder.push(pid, &Event::new(0, 0, What::Info { key, value }));
        }
        for start in (START..until).step_by(SAMPLE as usize) {
            for device in 0..2 {
                for (metric, thousandths) in [
                    (Metric::SmUtil, 50_000 + (start - START) / SAMPLE * 1000),
                    (Metric::DramBandwidth, 31_250),
                    (Metric::Power, 512_000),
                ] {
                    let what = What::GpuMetric {
                        device,
                        metric: Some(metric),
                        thousandths,
                    };
                    builder.push(pid, &Event::new(start, SAMPLE, what));
                }
            }
        }
        builder
    }

    fn facts(&self, writer: &mut RecordWriter) {
        let main = writer.ids[0];
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
            let id = writer.builder.string(main, text);
            writer.put(
                0,
                START,
                0,
                What::Info {
                    key: Some(key),
                    value: u64::from(id),
                },
            );
        }
        writer.put(
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
            let name = writer.builder.string(main, name);
            writer.put(
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
            let name = writer.builder.string(writer.ids[thread], name);
            writer.put(thread, START, 0, What::ThreadName { name });
        }
    }
}

impl RecordWriter {
    fn anchor(&self, ns: u64) {
        let anchor = Anchor {
            ticks: ticks(ns),
            monotonic_ns: ns,
            unix_ns: ns + UNIX,
        };
        self.builder.header().anchor(anchor);
    }

    /// Writes an event of one of the threads in `ids`. `thread` is the index of the thread, and
    /// `long` is the event's duration in nanoseconds.
    fn put(&mut self, thread: usize, at: u64, long: u64, what: What) {
        let duration = match what {
            What::GpuSpan { .. }
            | What::GpuKernel { .. }
            | What::GpuCopy { .. }
            | What::GpuSet { .. } => long,
            _ => long * TICKS,
        };
        let event = Event::new(ticks(at), duration, what);
        self.builder.push(self.ids[thread], &event);
    }

    fn edge(&mut self, at: u64, edge: Edge, iteration: u64) {
        self.put(0, at, 0, What::Window { edge, iteration });
    }

    fn kernel_edge(&mut self, at: u64, edge: Edge, iteration: u64) {
        self.put(0, at, 0, What::KernelWindow { edge, iteration });
    }

    /// Writes the GPU's work in an iteration. Pairs of events are swapped, to test that events may
    /// be slightly out of order.
    fn kernels(&mut self, truth: &Truth, (pieces, apart, long): (u64, u64, u64)) {
        let begin = truth.start + truth.duration - truth.gpu;
        let (device, stream) = (0, 1);
        for turn in 0..pieces {
            let piece = if turn ^ 1 < pieces { turn ^ 1 } else { turn };
            let what = match piece {
                0 => What::GpuSet {
                    device,
                    stream,
                    bytes: 4096,
                },
                _ if piece == pieces - 1 => What::GpuCopy {
                    device,
                    stream,
                    kind: CopyKind::DeviceToHost,
                    bytes: 1 << 20,
                },
                _ => What::GpuKernel {
                    device,
                    stream,
                    name: self.names.gemm,
                    correlation: piece as u32,
                },
            };
            self.put(2, begin + piece * apart, long, what);
        }
        // This kernel runs on another stream, at the same time as the first kernel.
        let other = What::GpuKernel {
            device,
            stream: 2,
            name: self.names.graph,
            correlation: 0,
        };
        self.put(2, begin + apart + long / 4, long / 2, other);
    }

    fn iteration(&mut self, truth: &Truth, kernels: u64, excluded: bool) {
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
        // A call that was captured into a graph launches nothing, so it must not be counted as a
        // launch.
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
        // Waits of another thread must not be counted for the iteration.
        self.put(1, start + 4 * MS, 3 * MS, call(WAIT));
        let end = start + truth.duration;
        self.put(0, end - truth.wait, truth.wait, call(WAIT));
        let NameIds {
            step,
            forward,
            engine,
            own,
            iteration,
            ..
        } = self.names;
        let range = |domain, name| What::Range {
            kind: RangeKind::PushPop,
            domain,
            name,
        };
        self.put(0, start + US, 5 * MS, range(engine, forward));
        self.put(0, start, truth.duration, range(own, iteration));
        self.put(0, start, truth.duration - 10, What::Function { name: step });
        self.put(0, start, truth.duration, What::Iteration { n, excluded });
        // The GPU works on two streams. The work on the first stream ends when the host's wait for the GPU ends.
        let gpu = |stream| What::GpuSpan {
            device: 0,
            stream,
            iteration: n,
        };
        self.put(1, end - truth.gpu, truth.gpu, gpu(1));
        self.put(1, end - MS, 900 * US, gpu(2));
    }
}
