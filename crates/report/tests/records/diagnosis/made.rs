//! A loop with one stream, recorded: 40 iterations of 10 ms, whose ills are as wished.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Batch, CallKind, ClockKind, CopyKind, Edge, Ended, Event, Info, Metric, Reader, StringId, Used,
    What,
};
use tllmprof_report::{Finding, Process, Report, Verdict};

pub const MS: u64 = 1_000_000;
pub const US: u64 = 1_000;

const START: u64 = 1000 * MS;
const LENGTH: u64 = 10 * MS;
const MAIN: u32 = 7;
const OTHER: u32 = 8;

/// Rows of the table of calls.
pub const LAUNCH: u8 = 0;
pub const WAIT: u8 = 1;
pub const COPY: u8 = 2;
pub const ALLOCATE: u8 = 3;
pub const EVENT_WAIT: u8 = 4;
pub const CAPTURE: u8 = 5;
pub const COPY_ASYNC: u8 = 6;

/// A call: its row, and from when to when in its iteration, in nanoseconds.
pub type Call = (u8, u64, u64);

/// The loop. By default a kernel of 9 ms and a wait for it.
#[derive(Clone)]
pub struct Made {
    pub rank: u64,
    pub iterations: u64,
    pub calls: Vec<Call>,
    /// Of every launch.
    pub streams: Vec<u64>,
    /// When the GPU begins and ends, as events bound it.
    pub gpu: Option<(u64, u64)>,
    /// Kernels and copies of each iteration, from when to when.
    pub kernels: Vec<(u64, u64)>,
    pub copies: Vec<(u64, u64)>,
    /// They are taken in that many iterations alone, each of which takes twice as long for it.
    pub kernel_steps: Option<u64>,
    /// Events that are missing.
    pub dropped: u64,
    pub python: bool,
    /// Recorded by our library, and not by nsys.
    pub by_library: bool,
    pub settings: Vec<&'static str>,
    /// Of these iterations, that much more.
    pub gc: fn(u64) -> u64,
    pub gil: fn(u64) -> u64,
    /// What these iterations take longer, nobody knows why.
    pub longer: fn(u64) -> u64,
    /// In these iterations a graph is captured.
    pub captures: fn(u64) -> bool,
    /// What the thread used of the machine in each iteration: time in nanoseconds, and how often.
    pub used: Vec<(Used, u64, u32)>,
    /// In these iterations more is launched, and waited for, at the end.
    pub prompts: fn(u64) -> bool,
    /// The tokens of these iterations' batches; `None`: not known.
    pub tokens: Option<fn(u64) -> i64>,
    pub engine: &'static str,
    /// What an iteration is.
    pub rule: &'static str,
    /// A collection of the other thread, while the first waits.
    pub hidden_gc: u64,
    /// SM utilisation and bandwidth of GPUs, in per cent.
    pub metrics: Vec<(f64, Option<f64>)>,
    /// What GPUs report that have neither.
    pub gpu_util: Option<f64>,
    /// Tokens of each expert, by layer.
    pub experts: Vec<Vec<u64>>,
    /// The library's table has allocations.
    pub counts_allocations: bool,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            rank: 0,
            iterations: 40,
            calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9500 * US)],
            streams: vec![1],
            gpu: Some((100 * US, 9500 * US)),
            kernels: Vec::new(),
            copies: Vec::new(),
            kernel_steps: None,
            dropped: 0,
            python: false,
            by_library: true,
            settings: Vec::new(),
            gc: |_| 0,
            gil: |_| 0,
            longer: |_| 0,
            captures: |_| false,
            used: vec![(Used::Ran, LENGTH, 1)],
            prompts: |_| false,
            tokens: None,
            engine: "",
            rule: "cuStreamSynchronize",
            hidden_gc: 0,
            metrics: Vec::new(),
            gpu_util: None,
            experts: Vec::new(),
            counts_allocations: true,
        }
    }
}

struct Writing(Builder);

impl Writing {
    fn put(&mut self, thread: u32, start: u64, duration: u64, what: What) {
        self.0.push(thread, &Event::new(start, duration, what));
    }

    fn info(&mut self, key: Info, text: &str) {
        let value = u64::from(self.string(text));
        let key = Some(key);
        self.put(MAIN, START, 0, What::Info { key, value });
    }

    fn string(&mut self, text: &str) -> StringId {
        self.0.string(MAIN, text)
    }
}

impl Made {
    pub fn process(&self) -> Process {
        let mut writing = Writing(Builder::new(100 + self.rank as u32, ClockKind::Monotonic));
        self.facts(&mut writing);
        let kernel = writing.string("gemm");
        let mut now = START;
        for n in 0..self.iterations {
            let slowed = self.kernel_steps.is_some_and(|steps| n < steps);
            let more = (self.gc)(n) + (self.gil)(n) + (self.longer)(n) + u64::from(slowed) * LENGTH;
            self.iteration(&mut writing, n, now, LENGTH + more, kernel);
            now += LENGTH + more;
        }
        self.measured(&mut writing, now - START);
        if let Some(steps) = self.kernel_steps {
            for (edge, iteration) in [(Edge::Open, 0), (Edge::Close, steps - 1)] {
                let at = START + iteration * 2 * LENGTH;
                writing.put(MAIN, at, 0, What::KernelWindow { edge, iteration });
            }
        }
        if self.dropped > 0 {
            let events = self.dropped;
            writing.put(MAIN, now, 0, What::Dropped { events });
        }
        writing.0.end(Ended::InOrder);
        let bytes = writing.0.bytes();
        let reader = Reader::new(&bytes[..]).unwrap();
        Process::read(PathBuf::from("made"), &reader).unwrap()
    }

    fn facts(&self, writing: &mut Writing) {
        let rank = Some(Info::Rank);
        let value = self.rank;
        writing.put(MAIN, START, 0, What::Info { key: rank, value });
        writing.info(Info::Boot, "boot");
        writing.info(Info::Rule, self.rule);
        writing.info(Info::Engine, self.engine);
        if self.by_library {
            writing.info(Info::Version, "0.1.0");
        }
        if self.python {
            writing.info(Info::Python, "3.12.1");
        }
        for setting in &self.settings {
            writing.info(Info::Setting, setting);
        }
        let name = writing.string("tokenise");
        writing.put(OTHER, START, 0, What::ThreadName { name });
        for (row, kind, name) in [
            (LAUNCH, CallKind::KernelLaunch, "cuLaunchKernel"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
            (COPY, CallKind::Wait, "cuMemcpyDtoH_v2"),
            (EVENT_WAIT, CallKind::Wait, "cuEventSynchronize"),
            (ALLOCATE, CallKind::Other, "cuMemAlloc_v2"),
            (CAPTURE, CallKind::Capture, "cuStreamEndCapture"),
            (COPY_ASYNC, CallKind::AsyncCopy, "cuMemcpyHtoDAsync_v2"),
        ] {
            if row == ALLOCATE && !self.counts_allocations {
                continue;
            }
            let (kind, name) = (Some(kind), writing.string(name));
            writing.put(MAIN, START, 0, What::CallName { row, kind, name });
        }
    }

    fn iteration(&self, writing: &mut Writing, n: u64, start: u64, duration: u64, name: StringId) {
        let prompt = [(LAUNCH, 9700 * US, 9705 * US), (WAIT, 9710 * US, 9990 * US)];
        let prompt = prompt.iter().filter(|_| (self.prompts)(n));
        for (place, (row, from, to)) in self.calls.iter().chain(prompt).enumerate() {
            let stream = match *row {
                LAUNCH => self.streams[place % self.streams.len()],
                _ => 0,
            };
            let (row, capturing) = (*row, false);
            let what = What::Call {
                row,
                capturing,
                stream,
            };
            writing.put(MAIN, start + from, to - from, what);
        }
        if (self.captures)(n) {
            let what = What::Call {
                row: CAPTURE,
                capturing: false,
                stream: 1,
            };
            writing.put(MAIN, start + 9_600 * US, 10 * US, what);
        }
        if let Some(tokens) = self.tokens {
            let batch = Batch::new(1, tokens(n), 0).unwrap();
            let iteration = n as u16;
            writing.put(MAIN, start, 0, What::Batch { iteration, batch });
        }
        for (what, ns, count) in &self.used {
            let what = What::Used {
                what: Some(*what),
                iteration: n as u32,
                count: *count,
            };
            writing.put(MAIN, start + duration, *ns, what);
        }
        // What makes an iteration longer is at its end.
        let (gc, gil) = ((self.gc)(n), (self.gil)(n));
        if gc > 0 {
            let (generation, collected) = (2, 1);
            let what = What::Gc {
                generation,
                collected,
            };
            writing.put(MAIN, start + LENGTH, gc, what);
        }
        if gil > 0 {
            writing.put(MAIN, start + LENGTH + gc, gil, What::GilWait);
            writing.put(OTHER, start + LENGTH + gc, gil, What::GilHold);
        }
        if self.hidden_gc > 0 {
            let (generation, collected) = (2, 1);
            let what = What::Gc {
                generation,
                collected,
            };
            writing.put(OTHER, start + 100 * US, self.hidden_gc, what);
        }
        let (device, stream) = (0, 1);
        if let Some((from, to)) = self.gpu {
            let what = What::GpuSpan {
                device,
                stream,
                iteration: n,
            };
            writing.put(MAIN, start + from, to - from, what);
        }
        if self.kernel_steps.is_some_and(|steps| n >= steps) {
            writing.put(
                MAIN,
                start,
                duration,
                What::Iteration { n, excluded: false },
            );
            return;
        }
        for (launch, (from, to)) in (0..).zip(&self.kernels) {
            let what = What::GpuKernel {
                device,
                stream,
                correlation: launch,
                name,
            };
            writing.put(MAIN, start + from, to - from, what);
        }
        for (from, to) in &self.copies {
            let what = What::GpuCopy {
                device,
                stream,
                kind: CopyKind::DeviceToHost,
                bytes: 1 << 20,
            };
            writing.put(MAIN, start + from, to - from, what);
        }
        writing.put(
            MAIN,
            start,
            duration,
            What::Iteration { n, excluded: false },
        );
    }

    fn measured(&self, writing: &mut Writing, all: u64) {
        let mut metric = |device, metric, percent: f64| {
            let what = What::GpuMetric {
                device,
                metric: Some(metric),
                thousandths: (percent * 1000.0) as u64,
            };
            writing.put(MAIN, START, all, what);
        };
        for (device, (sm, bandwidth)) in (0..).zip(&self.metrics) {
            metric(device, Metric::SmUtil, *sm);
            if let Some(bandwidth) = bandwidth {
                metric(device, Metric::DramBandwidth, *bandwidth);
            }
        }
        if let Some(percent) = self.gpu_util {
            metric(0, Metric::GpuUtil, percent);
        }
        for (layer, experts) in (0..).zip(&self.experts) {
            for (expert, tokens) in (0..).zip(experts) {
                let tokens = *tokens;
                let what = What::ExpertLoad {
                    layer,
                    expert,
                    tokens,
                };
                writing.put(MAIN, START, 0, what);
            }
        }
    }
}

/// What is found in some processes: in all no more than all of the time, by causes alone.
#[track_caller]
pub fn report(all: &[Made]) -> Report {
    let report = Report::new(all.iter().map(Made::process).collect());
    let losses: f64 = report.findings.iter().filter_map(|one| one.loss).sum();
    assert!(losses <= 1.0 + 1e-9, "{:#?}", report.findings);
    // The first is a cause if there is one, and what is none then claims nothing.
    let losing = || report.findings.iter().filter(|one| one.loss.is_some());
    let kinds: BTreeSet<_> = losing().map(|one| one.rule.kind).collect();
    assert!(kinds.len() <= 1, "{:#?}", report.findings);
    assert!(losing().all(|one| one.verdict == Verdict::Yes));
    report
}

/// What a rule says.
#[track_caller]
pub fn of<'a>(report: &'a Report, rule: &str) -> &'a Finding {
    let mut findings = report.findings.iter();
    findings.find(|finding| finding.rule.name == rule).unwrap()
}

/// The rules that say yes, in their order.
pub fn yes(report: &Report) -> Vec<&'static str> {
    let findings = report.findings.iter();
    let yes = findings.filter(|finding| finding.verdict == Verdict::Yes);
    yes.map(|finding| finding.rule.name).collect()
}
