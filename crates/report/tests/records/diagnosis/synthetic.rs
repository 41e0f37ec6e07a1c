//! The record of a simulated loop, by default with one stream and 40 iterations of 10 ms. Tests choose the faults that
//! the loop has.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Batch, CallKind, ClockKind, CopyKind, Edge, Ended, Event, GraphState, Info, Metric, Reader,
    StringId, Taken, ThreadState, Used, What,
};
use tllmprof_report::{Finding, Process, Report, Verdict};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const US: u64 = 1_000;

pub(super) const START: u64 = 1000 * MS;
pub(super) const LENGTH: u64 = 10 * MS;
pub(super) const MAIN: u32 = 7;
const OTHER: u32 = 8;
const SAMPLER: u32 = 9;

/// The frames of sampled stacks: ID, ID of the caller, and name.
const FRAMES: &[(u32, u32, &str)] = &[
    (1, 0, "serve (/srv/serve.py:10)"),
    (
        2,
        1,
        "OptimizedModule.__call__ (/x/torch/_dynamo/eval_frame.py:400)",
    ),
    (
        RUNS_COMPILED,
        2,
        "cudagraphify.<locals>.run (/x/torch/_inductor/compile_fx.py:2288)",
    ),
    (
        4,
        2,
        "ConvertFrame.__call__ (/x/torch/_dynamo/convert_frame.py:1200)",
    ),
    (5, 4, "_compile (/x/torch/_dynamo/convert_frame.py:1690)"),
    (
        COMPILES,
        5,
        "step (/x/torch/_dynamo/symbolic_convert.py:1500)",
    ),
];
/// The frame of a function that runs compiled code.
const RUNS_COMPILED: u32 = 3;
/// The frame of a function in torch.compile's compiler.
const COMPILES: u32 = 6;

/// Index of the row of the launching function in the loop's table of calls. The constants below are the indexes of
/// other rows.
pub(crate) const LAUNCH: u8 = 0;
pub(crate) const WAIT: u8 = 1;
pub(crate) const COPY: u8 = 2;
pub(crate) const ALLOCATE: u8 = 3;
pub(crate) const EVENT_WAIT: u8 = 4;
pub(crate) const CAPTURE: u8 = 5;
pub(crate) const COPY_ASYNC: u8 = 6;
pub(crate) const COMPILE: u8 = 7;
pub(crate) const GRAPH: u8 = 8;
pub(crate) const HOST_FUNCTION: u8 = 9;

/// A call: its row in the table of calls, and its start and end in nanoseconds from the start of the iteration.
pub(crate) type Call = (u8, u64, u64);

/// The kernels of a graph launch: the number of the executable graph, and their start and end in nanoseconds from the
/// start of the iteration.
pub(crate) type Replay = (u32, u64, u64);

/// A simulated loop. By default, each iteration has one launch and a wait for its GPU work, which takes 9.4 ms as CUDA
/// events measure it. No kernels are recorded.
#[derive(Clone)]
pub(crate) struct SyntheticLoop {
    pub rank: u64,
    pub iterations: u64,
    pub calls: Vec<Call>,
    /// Returns the calls of an iteration; `None` if all iterations have those in `calls`.
    pub calls_of: Option<fn(u64) -> Vec<Call>>,
    /// Handles of the streams on which work is launched. A launch uses the handle with the index of its call in the
    /// iteration, modulo the number of handles.
    pub streams: Vec<u64>,
    /// The handle of the stream that each wait is for. If it is not 0, the record has the opening and the closing of a
    /// window.
    pub wait_stream: u64,
    /// Start and end of the GPU's work in an iteration, as CUDA events measure it, in nanoseconds from the start of
    /// the iteration; `None` if CUDA events do not measure it.
    pub gpu: Option<(u64, u64)>,
    /// Start and end of each recorded kernel, in nanoseconds from the start of the iteration.
    pub kernels: Vec<(u64, u64)>,
    /// Start and end of each recorded copy, in nanoseconds from the start of the iteration.
    pub copies: Vec<(u64, u64)>,
    /// Returns the replays of the graphs that an iteration launches, in the order of the launches. `None` if the record
    /// does not show which graph a kernel belongs to.
    pub replays: Option<fn(u64) -> Vec<Replay>>,
    /// The states of executable graphs. Each entry is the number of the iteration at whose start the state ends, the
    /// number of the executable graph, the state, and the number of the captured graph.
    pub graph_states: Vec<(u64, u32, GraphState, u32)>,
    /// Number of iterations with recorded kernels, each of which takes twice as long. For `None`,
    /// kernels are recorded in all iterations and do not make them longer.
    pub kernel_steps: Option<u64>,
    /// Number of events that the record reports as missing.
    pub dropped: u64,
    pub python: bool,
    /// True if tllmprof recorded the process, false if nsys did.
    pub by_library: bool,
    pub settings: Vec<&'static str>,
    /// Returns the time of a garbage collection that makes an iteration longer, in nanoseconds.
    pub gc: fn(u64) -> u64,
    /// Returns the time of a wait for the GIL that makes an iteration longer, in nanoseconds.
    pub gil: fn(u64) -> u64,
    /// Returns the additional time of an iteration for which the record shows no cause, in
    /// nanoseconds.
    pub longer: fn(u64) -> u64,
    /// Returns true for iterations in which a graph is captured.
    pub captures: fn(u64) -> bool,
    /// Returns the time, in nanoseconds, by which an iteration is longer because it loads code.
    pub compiles: fn(u64) -> u64,
    /// Returns the time for which torch.compile compiles in an iteration, which makes it longer, in nanoseconds. Stacks
    /// are sampled each millisecond. `None` if stacks are not sampled.
    pub recompiles: Option<fn(u64) -> u64>,
    /// Values that the operating system counted for the thread in each iteration: the kind of a value, its time in
    /// nanoseconds, and its count.
    pub used: Vec<(Used, u64, u32)>,
    /// Returns true for iterations that launch further work at their end and wait for it, as an engine does for a
    /// prompt.
    pub prompts: fn(u64) -> bool,
    /// Returns the number of tokens in an iteration's batch; `None` if batches are not known.
    pub tokens: Option<fn(u64) -> i64>,
    /// Returns the number of requests in an iteration's batch.
    pub requests: fn(u64) -> u16,
    /// Returns the number of prompt tokens in an iteration's batch.
    pub prompt_tokens: fn(u64) -> i64,
    pub engine: &'static str,
    /// The rule by which iterations are counted.
    pub rule: &'static str,
    /// Time of a garbage collection on another thread while the main thread waits, in nanoseconds.
    pub hidden_gc: u64,
    /// SM utilization and memory bandwidth of each GPU, in percent.
    pub metrics: Vec<(f64, Option<f64>)>,
    /// The utilization that a GPU without SM metrics reports, in percent.
    pub gpu_util: Option<f64>,
    /// Number of tokens that each expert received. The first index is the layer, the second is the expert.
    pub experts: Vec<Vec<u64>>,
    /// True if the record's table of calls contains functions that allocate memory.
    pub counts_allocations: bool,
    /// Calls of marked functions (Python functions that the user selected) in each iteration: name, and start and end
    /// in nanoseconds from the start of the iteration.
    pub functions: Vec<(&'static str, u64, u64)>,
    /// The code addresses of host functions (functions of the program that it enqueues in streams), each with the
    /// number of times that it was enqueued.
    pub host_functions: Vec<(&'static str, u32)>,
}

impl Default for SyntheticLoop {
    fn default() -> Self {
        Self {
            rank: 0,
            iterations: 40,
            calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9500 * US)],
            calls_of: None,
            streams: vec![1],
            wait_stream: 0,
            gpu: Some((100 * US, 9500 * US)),
            kernels: Vec::new(),
            copies: Vec::new(),
            replays: None,
            graph_states: Vec::new(),
            kernel_steps: None,
            dropped: 0,
            python: false,
            by_library: true,
            settings: Vec::new(),
            gc: |_| 0,
            gil: |_| 0,
            longer: |_| 0,
            captures: |_| false,
            compiles: |_| 0,
            recompiles: None,
            used: vec![(Used::Ran, LENGTH, 1)],
            prompts: |_| false,
            tokens: None,
            requests: |_| 1,
            prompt_tokens: |_| 0,
            engine: "",
            rule: "cuStreamSynchronize",
            hidden_gc: 0,
            metrics: Vec::new(),
            gpu_util: None,
            experts: Vec::new(),
            counts_allocations: true,
            functions: Vec::new(),
            host_functions: Vec::new(),
        }
    }
}

struct RecordWriter(Builder);

impl RecordWriter {
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

    /// Writes the three kernels of a graph that an iteration launched. With the second one, the driver copies memory.
    /// `start` is the start of the iteration in nanoseconds.
    fn replay(&mut self, start: u64, (exec, from, to): Replay, correlation: u32, name: StringId) {
        let (device, stream) = (0, 1);
        let copying = self.string("memcpy128");
        let middle = from.midpoint(to);
        let copied = middle + US;
        let kernels = [
            (from, middle, name),
            (middle, copied, copying),
            (copied, to, name),
        ];
        for (node, (from, to, name)) in (0..).zip(kernels) {
            let kernel = What::GpuKernel {
                device,
                stream,
                correlation,
                name,
            };
            self.put(MAIN, start + from, to - from, kernel);
            let node = What::KernelNode {
                device,
                stream,
                exec,
                node,
            };
            self.put(MAIN, start + from, 0, node);
        }
    }
}

impl SyntheticLoop {
    pub(crate) fn process(&self) -> Process {
        let mut writer = RecordWriter(Builder::new(100 + self.rank as u32, ClockKind::Monotonic));
        self.facts(&mut writer);
        let kernel = writer.string("gemm");
        let mut now = START;
        for n in 0..self.iterations {
            let slowed = self.kernel_steps.is_some_and(|steps| n < steps);
            let fast = (self.gc)(n) + (self.gil)(n) + (self.longer)(n) + (self.compiles)(n);
            let recompiles = self.recompiles.map_or(0, |recompiles| recompiles(n));
            let more = fast + recompiles + u64::from(slowed) * LENGTH;
            self.sample(&mut writer, now, LENGTH + more, recompiles);
            self.iteration(&mut writer, n, now, LENGTH + more, kernel);
            now += LENGTH + more;
        }
        for (name, count) in &self.host_functions {
            let (name, count) = (writer.string(name), *count);
            writer.put(MAIN, now, 0, What::HostFunction { name, count });
        }
        self.measured(&mut writer, now - START);
        if self.wait_stream > 0 {
            let last = self.iterations - 1;
            for (at, edge, iteration) in [(START, Edge::Open, 0), (now, Edge::Close, last)] {
                writer.put(MAIN, at, 0, What::Window { edge, iteration });
            }
        }
        if let Some(steps) = self.kernel_steps {
            for (edge, iteration) in [(Edge::Open, 0), (Edge::Close, steps - 1)] {
                let at = START + iteration * 2 * LENGTH;
                writer.put(MAIN, at, 0, What::KernelWindow { edge, iteration });
            }
        }
        for (until, exec, state, graph) in &self.graph_states {
            let what = What::GraphExec {
                state: Some(*state),
                exec: *exec,
                graph: *graph,
            };
            writer.put(MAIN, START + until * 2 * LENGTH, 0, what);
        }
        if self.dropped > 0 {
            let events = self.dropped;
            writer.put(MAIN, now, 0, What::Dropped { events });
        }
        writer.0.end(Ended::InOrder);
        let bytes = writer.0.bytes();
        let reader = Reader::new(&bytes[..]).unwrap();
        Process::read(PathBuf::from("made"), &reader).unwrap()
    }

    /// Writes samples of the stack for an iteration, one each millisecond. In the last `compiling` nanoseconds of the
    /// iteration, the samples are in torch.compile's compiler.
    fn sample(&self, writer: &mut RecordWriter, start: u64, length: u64, compiling: u64) {
        let ends = (1..=length / MS).filter(|_| self.recompiles.is_some());
        for end in ends.map(|end| end * MS) {
            let what = What::Sample {
                taken: Taken::Python,
                state: Some(ThreadState::Running),
                thread: MAIN,
                frame: match end > length - compiling {
                    true => COMPILES,
                    false => RUNS_COMPILED,
                },
            };
            writer.put(SAMPLER, start + end - MS / 2, 0, what);
        }
    }

    fn facts(&self, writer: &mut RecordWriter) {
        for (id, parent, name) in FRAMES.iter().filter(|_| self.recompiles.is_some()) {
            let (id, parent, name) = (*id, *parent, writer.0.string(SAMPLER, name));
            writer.put(SAMPLER, START, 0, What::Frame { id, parent, name });
        }
        let rank = Some(Info::Rank);
        let value = self.rank;
        writer.put(MAIN, START, 0, What::Info { key: rank, value });
        writer.info(Info::Boot, "boot");
        writer.info(Info::Rule, self.rule);
        writer.info(Info::Engine, self.engine);
        if self.by_library {
            writer.info(Info::Version, "0.1.0");
        }
        if self.python {
            writer.info(Info::Python, "3.12.1");
        }
        for setting in &self.settings {
            writer.info(Info::Setting, setting);
        }
        let name = writer.string("tokenise");
        writer.put(OTHER, START, 0, What::ThreadName { name });
        for (row, kind, name) in [
            (LAUNCH, CallKind::KernelLaunch, "cuLaunchKernel"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
            (COPY, CallKind::Wait, "cuMemcpyDtoH_v2"),
            (EVENT_WAIT, CallKind::Wait, "cuEventSynchronize"),
            (ALLOCATE, CallKind::Other, "cuMemAlloc_v2"),
            (CAPTURE, CallKind::Capture, "cuStreamEndCapture"),
            (COPY_ASYNC, CallKind::AsyncCopy, "cuMemcpyHtoDAsync_v2"),
            (COMPILE, CallKind::Other, "cuModuleLoadData"),
            (GRAPH, CallKind::GraphLaunch, "cuGraphLaunch"),
            (HOST_FUNCTION, CallKind::Other, "cuLaunchHostFunc"),
        ] {
            if row == ALLOCATE && !self.counts_allocations {
                continue;
            }
            let (kind, name) = (Some(kind), writer.string(name));
            writer.put(MAIN, START, 0, What::CallName { row, kind, name });
        }
    }

    fn iteration(
        &self,
        writer: &mut RecordWriter,
        n: u64,
        start: u64,
        duration: u64,
        name: StringId,
    ) {
        let prompt = [(LAUNCH, 9700 * US, 9705 * US), (WAIT, 9710 * US, 9990 * US)];
        let prompt = prompt.iter().filter(|_| (self.prompts)(n));
        let mut functions = self.functions.iter().peekable();
        let calls = self
            .calls_of
            .map_or_else(|| self.calls.clone(), |calls| calls(n));
        for (place, (row, from, to)) in calls.iter().chain(prompt).enumerate() {
            // A thread's events must be in the order of their ends. So the functions that end no later than this call
            // are written first.
            while let Some((name, from, to)) = functions.next_if(|(_, _, end)| end <= to) {
                let name = writer.string(name);
                writer.put(MAIN, start + from, to - from, What::Function { name });
            }
            let stream = match *row {
                LAUNCH | GRAPH => self.streams[place % self.streams.len()],
                WAIT => self.wait_stream,
                _ => 0,
            };
            let (row, capturing) = (*row, false);
            let what = What::Call {
                row,
                capturing,
                stream,
            };
            writer.put(MAIN, start + from, to - from, what);
        }
        if (self.captures)(n) {
            let what = What::Call {
                row: CAPTURE,
                capturing: false,
                stream: 1,
            };
            writer.put(MAIN, start + 9_600 * US, 10 * US, what);
        }
        if let Some(tokens) = self.tokens {
            let batch = Batch::new(
                (self.requests)(n).into(),
                tokens(n),
                (self.prompt_tokens)(n),
            )
            .unwrap();
            let iteration = n as u16;
            writer.put(MAIN, start, 0, What::Batch { iteration, batch });
        }
        for (what, ns, count) in &self.used {
            let what = What::Used {
                what: Some(*what),
                iteration: n as u32,
                count: *count,
            };
            writer.put(MAIN, start + duration, *ns, what);
        }
        // Write the events that explain the additional time of the iteration. They are at its end.
        let (gc, gil) = ((self.gc)(n), (self.gil)(n));
        let compiles = (self.compiles)(n);
        if compiles > 0 {
            let what = What::Call {
                row: COMPILE,
                capturing: false,
                stream: 0,
            };
            writer.put(MAIN, start + LENGTH, compiles, what);
        }
        if gc > 0 {
            let (generation, collected) = (2, 1);
            let what = What::Gc {
                generation,
                collected,
            };
            writer.put(MAIN, start + LENGTH, gc, what);
        }
        if gil > 0 {
            writer.put(MAIN, start + LENGTH + gc, gil, What::GilWait);
            writer.put(OTHER, start + LENGTH + gc, gil, What::GilHold);
        }
        if self.hidden_gc > 0 {
            let (generation, collected) = (2, 1);
            let what = What::Gc {
                generation,
                collected,
            };
            writer.put(OTHER, start + 100 * US, self.hidden_gc, what);
        }
        let (device, stream) = (0, 1);
        if let Some((from, to)) = self.gpu {
            let what = What::GpuSpan {
                device,
                stream,
                iteration: n,
            };
            writer.put(MAIN, start + from, to - from, what);
        }
        if self.kernel_steps.is_some_and(|steps| n >= steps) {
            writer.put(
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
            writer.put(MAIN, start + from, to - from, what);
        }
        let replays = self.replays.map_or_else(Vec::new, |replays| replays(n));
        for (place, replay) in (0..).zip(replays) {
            writer.replay(start, replay, n as u32 * 8 + place, name);
        }
        for (from, to) in &self.copies {
            let what = What::GpuCopy {
                device,
                stream,
                kind: CopyKind::DeviceToHost,
                bytes: 1 << 20,
            };
            writer.put(MAIN, start + from, to - from, what);
        }
        writer.put(
            MAIN,
            start,
            duration,
            What::Iteration { n, excluded: false },
        );
    }

    fn measured(&self, writer: &mut RecordWriter, all: u64) {
        let mut metric = |device, metric, percent: f64| {
            let what = What::GpuMetric {
                device,
                metric: Some(metric),
                thousandths: (percent * 1000.0) as u64,
            };
            writer.put(MAIN, START, all, what);
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
                writer.put(MAIN, START, 0, what);
            }
        }
    }
}

/// Returns the report on processes. Checks that the losses of all findings add up to at most 1, and
/// that all findings with a loss are of one kind.
#[track_caller]
pub(crate) fn report(all: &[SyntheticLoop]) -> Report {
    let report = Report::new(all.iter().map(SyntheticLoop::process).collect());
    let losses: f64 = report.findings.iter().filter_map(|one| one.loss).sum();
    assert!(losses <= 1.0 + 1e-9, "{:#?}", report.findings);
    // Only findings of one kind, such as causes or symptoms, may have losses: the losses of the causes already contain
    // the time of their symptoms.
    let losing = || report.findings.iter().filter(|one| one.loss.is_some());
    let kinds: BTreeSet<_> = losing().map(|one| one.rule.kind).collect();
    assert!(kinds.len() <= 1, "{:#?}", report.findings);
    assert!(losing().all(|one| one.verdict == Verdict::Yes));
    report
}

/// Returns the finding of the rule with the name `rule`. Fails the test if there is none.
#[track_caller]
pub(crate) fn find_finding<'a>(report: &'a Report, rule: &str) -> &'a Finding {
    let mut findings = report.findings.iter();
    findings.find(|finding| finding.rule.name == rule).unwrap()
}

/// Returns the names of the rules that hold, in the order of the findings.
pub(crate) fn yes(report: &Report) -> Vec<&'static str> {
    let findings = report.findings.iter();
    let yes = findings.filter(|finding| finding.verdict == Verdict::Yes);
    yes.map(|finding| finding.rule.name).collect()
}
