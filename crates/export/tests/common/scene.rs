//! Builds records with known contents: the records of two processes on two machines, and a record of GPU metrics.

use std::collections::BTreeMap;

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, Batch, CallKind, ClockKind, CopyKind, Edge, Ended, Event, GraphState, Info, Metric,
    RangeKind, Taken, ThreadState, What,
};

use super::{Seen, args};

const US: u64 = 1000;

/// Nanoseconds since 1970 minus `CLOCK_MONOTONIC`, for each of the two machines. The second machine was
/// started five seconds before the first.
pub(crate) const UNIX: [u64; 2] = [1_700_000_005_000_000_000, 1_700_000_000_000_000_000];

/// Nanoseconds to add to the first machine's times to get the common clock, which is the second machine's
/// clock.
pub(crate) const SHIFT: u64 = UNIX[0] - UNIX[1];

/// A name with unusual characters, which must be exported unchanged.
pub(crate) const ODD: &str = "void \"f\\g\"<{int}>(\n\t\u{1}\u{7f}é漢)";
/// A name that is not valid UTF-8. It is exported as [`REPAIRED`].
const BROKEN: &[u8] = b"broken \xff\xfe\xc3\xf0";
/// The name [`BROKEN`] as an export must contain it.
pub(crate) const REPAIRED: &str = "broken \u{fffd}\u{fffd}\u{fffd}\u{fffd}";

/// Names that attack the place in which they are shown: a terminal, a JSON reader, an HTML page, a spreadsheet, or a
/// list with one name per line.
pub(crate) const HOSTILE: [&str; 6] = [
    "\u{1b}]0;owned\u{7}\u{1b}[31m\u{9b}2J",
    "\u{202e}gpj.exe\u{2066}\u{200b}\u{feff}\u{e0041}",
    "</script><img src=x onerror=alert(1)>&lt;'; drop table calls; --",
    "=cmd|' /C calc'!A0",
    "\r\n{\"ph\":\"X\"},\u{2028}",
    "../../etc/passwd%2F%00\\",
];

/// Maximum length of a name in a record, in bytes.
pub(crate) const LONGEST: usize = 4096;

/// The arrows that an export must contain, each as two times on the first machine's clock. An arrow leads from the
/// start of a launch, or of an earlier kernel of the same launch, to the start of a kernel.
pub(crate) const FLOWS: [(u64, u64); 3] = [
    (2_100 * US, 2_200 * US + 1),
    (2_160 * US, 2_400 * US + 1),
    // The first launch started two kernels, so another arrow leads from the first of them to the second.
    (2_200 * US + 1, 2_250 * US + 1),
];

/// A record under construction, together with the items that its export must contain.
pub(crate) struct Scene {
    pub builder: Builder,
    pub host: &'static str,
    pub pid: u32,
    ticks: u64,
    offset: u64,
    /// All items, such as calls and kernels, that an export must contain.
    pub seen: Vec<Seen>,
    iteration: Option<u64>,
}

impl Scene {
    pub(crate) fn new(
        host: &'static str,
        pid: u32,
        rank: u64,
        clock: ClockKind,
        unix: u64,
    ) -> Self {
        let (ticks, offset) = match clock {
            ClockKind::Counter => (2, 77),
            ClockKind::Monotonic => (1, 0),
        };
        let mut scene = Self {
            builder: Builder::new(pid, clock),
            host,
            pid,
            ticks,
            offset,
            seen: Vec::new(),
            iteration: None,
        };
        for ns in [1000 * US, 900_000 * US] {
            scene.builder.header().anchor(Anchor {
                ticks: ns * ticks + offset,
                monotonic_ns: ns,
                unix_ns: ns + unix,
            });
        }
        scene.builder.end(Ended::InOrder);
        for (key, text) in [
            (Info::Host, host),
            (
                Info::Boot,
                if host.starts_with("alpha") { "a" } else { "b" },
            ),
            (Info::Process, "python"),
            (Info::CommandLine, "python serve.py"),
            (Info::Rule, "cudaGraphLaunch"),
        ] {
            let value = u64::from(scene.builder.string(pid, text));
            scene.write(
                pid,
                1000 * US,
                0,
                What::Info {
                    key: Some(key),
                    value,
                },
            );
        }
        let key = Some(Info::Rank);
        scene.write(pid, 1000 * US, 0, What::Info { key, value: rank });
        scene
    }

    fn is_ns(what: What) -> bool {
        matches!(
            what,
            What::GpuSpan { .. }
                | What::GpuKernel { .. }
                | What::GpuCopy { .. }
                | What::GpuSet { .. }
        )
    }

    pub(crate) fn write(&mut self, tid: u32, start: u64, duration: u64, what: What) {
        self.event(tid, start, duration, what, |_| ());
    }

    fn event(&mut self, tid: u32, at: u64, long: u64, what: What, change: impl Fn(&mut Event)) {
        let duration = if Self::is_ns(what) {
            long
        } else {
            long * self.ticks
        };
        let mut event = Event::new(at * self.ticks + self.offset, duration, what);
        change(&mut event);
        self.builder.push(tid, &event);
    }

    pub(crate) fn thread(&mut self, tid: u32, name: &str) {
        let name = self.builder.string(tid, name);
        self.write(tid, 1000 * US, 0, What::ThreadName { name });
    }

    pub(crate) fn call_name(&mut self, row: u8, kind: CallKind, name: &str) {
        let (kind, name) = (Some(kind), self.builder.string(self.pid, name));
        self.write(self.pid, 1000 * US, 0, What::CallName { row, kind, name });
    }

    /// Adds an item that the export must contain. `more` contains the item's arguments except the iteration.
    fn note(
        &mut self,
        (track, name, category): (&str, &str, &str),
        start: u64,
        duration: Option<u64>,
        more: &[(&str, &str)],
    ) {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        if let Some(n) = self.iteration {
            all.insert("iteration".to_owned(), n.to_string());
        }
        for (key, value) in more {
            all.insert((*key).to_owned(), (*value).to_owned());
        }
        self.seen.push(Seen {
            host: self.host.to_owned(),
            track: track.to_owned(),
            name: name.to_owned(),
            category: category.to_owned(),
            start,
            duration,
            args: args(&all),
        });
    }

    pub(crate) fn window(&mut self, start: u64, end: u64, first: u64, last: u64, kernels: bool) {
        for (at, edge, iteration) in [(start, Edge::Open, first), (end, Edge::Close, last)] {
            let what = match kernels {
                true => What::KernelWindow { edge, iteration },
                false => What::Window { edge, iteration },
            };
            self.write(self.pid, at, 0, what);
        }
        let track = if kernels { "kernels taken" } else { "windows" };
        let outside = self.iteration.take();
        let name = format!("window {first}-{last}");
        self.note((track, &name, "window"), start, Some(end - start), &[]);
        self.iteration = outside;
    }

    pub(crate) fn iteration(&mut self, n: u64, start: u64, end: u64) {
        self.write(
            self.pid,
            start,
            end - start,
            What::Iteration { n, excluded: false },
        );
        // The batch has `n` requests with one token each, and another request with a prompt of three tokens.
        let batch = Batch::new(n as i64 + 1, n as i64 + 3, 3).unwrap();
        let iteration = n as u16;
        self.write(self.pid, start, 0, What::Batch { iteration, batch });
        self.iteration = Some(n);
        let name = format!("iteration {n}");
        self.note(
            ("iterations", &name, "iteration"),
            start,
            Some(end - start),
            &[],
        );
    }

    pub(crate) fn call(
        &mut self,
        track: (u32, &str),
        row: (u8, &str),
        start: u64,
        end: u64,
        stream: u64,
    ) {
        let what = What::Call {
            row: row.0,
            capturing: false,
            stream,
        };
        self.write(track.0, start, end - start, what);
        let number = stream.to_string();
        let more = [("stream", &number[..])];
        let more = if stream == 0 { &[][..] } else { &more };
        self.note((track.1, row.1, "cuda"), start, Some(end - start), more);
    }
}

/// Returns the three test records, each with its name and bytes, and the items that an export of them must contain.
/// These items do not include the values of GPU metrics, which are in [`METRICS`].
pub(crate) fn all() -> (Vec<(&'static str, Vec<u8>)>, Vec<Seen>) {
    let (server, other, metrics) = (server(), other(), metrics());
    let records = vec![
        ("server", server.builder.bytes()),
        ("other", other.builder.bytes()),
        ("metrics", metrics.builder.bytes()),
    ];
    (records, [server.seen, other.seen].concat())
}

/// The metrics that an export must contain: GPU and metric, unit, time in nanoseconds, value.
pub(crate) const METRICS: [(&str, &str, u64, f64); 3] = [
    ("GPU 0 SM busy", "%", 1_000_000, 57.25),
    ("GPU 0 SM busy", "%", 2_000_000, 60.0),
    ("GPU 3 power", "W", 1_000_000, 699.999),
];

fn metrics() -> Scene {
    let mut scene = Scene::new("alpha", 102, 0, ClockKind::Monotonic, UNIX[0]);
    for (device, metric, start, thousandths) in [
        (0, Metric::SmUtil, 1000 * US, 57_250),
        (0, Metric::SmUtil, 2000 * US, 60_000),
        (3, Metric::Power, 1000 * US, 699_999),
    ] {
        let metric = Some(metric);
        let what = What::GpuMetric {
            device,
            metric,
            thousandths,
        };
        scene.write(102, start, 1000 * US, what);
    }
    scene
}

/// Builds the record of a process on another machine. The process has the same process id as the server.
fn other() -> Scene {
    let mut scene = Scene::new("beta/β", 100, 1, ClockKind::Monotonic, UNIX[1]);
    scene.thread(100, "main");
    scene.call_name(0, CallKind::GraphLaunch, "cuGraphLaunch");
    scene.iteration(5, 6_000 * US, 7_000 * US);
    scene.call(
        (100, "main"),
        (0, "cuGraphLaunch"),
        6_100 * US,
        6_150 * US,
        0,
    );
    scene
}

fn server() -> Scene {
    let mut scene = Scene::new("alpha", 100, 0, ClockKind::Counter, UNIX[0]);
    let (main, worker) = ((100, "main"), (101, "worker \"1\""));
    scene.thread(main.0, main.1);
    scene.thread(worker.0, worker.1);
    scene.call_name(0, CallKind::GraphLaunch, "cuGraphLaunch");
    scene.call_name(9, CallKind::Wait, "cuStreamSynchronize");
    scene.window(2_000 * US, 8_000 * US, 5, 6, false);
    scene.window(2_000 * US, 3_000 * US, 5, 5, true);
    scene.iteration(5, 2_001 * US, 4_000 * US);
    scene.call(
        main,
        (0, "cuGraphLaunch"),
        2_100 * US,
        2_150 * US + 1,
        0x7f00_0000_1230,
    );
    scene.call(main, (0, "cuGraphLaunch"), 2_160 * US, 2_170 * US, 2);
    scene.call(main, (9, "cuStreamSynchronize"), 2_200 * US, 3_900 * US, 2);
    nested(&mut scene, main);
    odd_calls(&mut scene, worker);
    python(&mut scene, worker);
    gpu(&mut scene, worker.0);
    scene.iteration(6, 4_000 * US, 7_999 * US);
    // Adds ranges that overlap: three at the same time, of which two start together.
    let domain = scene.builder.string(main.0, "requests");
    for (name, start, end) in [
        ("a", 5_000, 6_000),
        ("b", 5_500, 6_500),
        ("c", 5_500, 7_000),
    ] {
        let (kind, id) = (RangeKind::StartEnd, scene.builder.string(main.0, name));
        let what = What::Range {
            kind,
            domain,
            name: id,
        };
        let (start, long) = (start * US, (end - start) * US);
        scene.write(main.0, start, long, what);
        let track = ("NVTX start/end, main", name, "nvtx");
        scene.note(track, start, Some(long), &[("domain", "requests")]);
    }
    // Adds thousands of calls, more than an exporter sorts at once, and then the function that contains these calls.
    for n in 0..6000_u64 {
        let start = 7_000 * US + n * 100;
        scene.call(main, (0, "cuGraphLaunch"), start, start + 50 + n % 50, 0);
    }
    let (start, long) = (6_990 * US, 700 * US);
    function(&mut scene, main, "Engine.step", start, long);
    samples(&mut scene, main);
    // Adds the number of tokens that an expert received, an item without a time.
    let (layer, expert, tokens) = (3, 200, 17);
    let what = What::ExpertLoad {
        layer,
        expert,
        tokens,
    };
    scene.write(main.0, 0, 0, what);
    scene
}

fn function(scene: &mut Scene, (tid, track): (u32, &str), name: &str, start: u64, long: u64) {
    let id = scene.builder.string(tid, name);
    scene.write(tid, start, long, What::Function { name: id });
    scene.note((track, name, "python"), start, Some(long), &[]);
}

/// Adds a function, a range that begins together with the function and contains it, and marks.
fn nested(scene: &mut Scene, (tid, track): (u32, &str)) {
    let inner = (ODD, 3_910 * US, 20 * US);
    function(scene, (tid, track), inner.0, inner.1, inner.2);
    let huge = "x".repeat(4096);
    let (outer, long) = (scene.builder.string(tid, &huge), 50 * US);
    let what = What::Range {
        kind: RangeKind::PushPop,
        domain: 0,
        name: outer,
    };
    scene.write(tid, inner.1, long, what);
    scene.note((track, &huge, "nvtx"), inner.1, Some(long), &[]);
    let name = scene.builder.text(tid, BROKEN);
    let domain = scene.builder.string(tid, "engine");
    scene.write(tid, 3_970 * US, 0, What::Mark { domain, name });
    let mark = (track, REPAIRED, "nvtx");
    scene.note(mark, 3_970 * US, None, &[("domain", "engine")]);
    let long = "長".repeat(LONGEST / "長".len());
    for (name, at) in HOSTILE.into_iter().chain([&long[..]]).zip(3_971..) {
        let id = scene.builder.string(tid, name);
        scene.write(tid, at * US, 0, What::Mark { domain, name: id });
        let mark = (track, name, "nvtx");
        scene.note(mark, at * US, None, &[("domain", "engine")]);
    }
}

/// Adds calls that failed, were cut short by the end of a window (a recorded interval), or were made during a stream
/// capture. All are calls of a CUDA function whose name is missing in the record.
fn odd_calls(scene: &mut Scene, (tid, track): (u32, &str)) {
    type Change = fn(&mut Event);
    let changes: [(&str, bool, Change); 3] = [
        ("failed", false, |event| event.failed = true),
        ("cut", false, |event| event.cut = true),
        ("capturing", true, |_| ()),
    ];
    for ((key, capturing, change), n) in changes.into_iter().zip(0..) {
        let start = 2_300 * US + n * 10 * US;
        let what = What::Call {
            row: 33,
            capturing,
            stream: 0,
        };
        scene.event(tid, start, 5 * US, what, change);
        let call = (track, "call 33", "cuda");
        scene.note(call, start, Some(5 * US), &[(key, "true")]);
    }
}

fn python(scene: &mut Scene, (tid, track): (u32, &str)) {
    let gc = What::Gc {
        generation: 2,
        collected: 12,
    };
    scene.write(tid, 2_400 * US, 300 * US, gc);
    let name = (track, "Python GC gen2", "gc");
    scene.note(name, 2_400 * US, Some(300 * US), &[("collected", "12")]);
    let gil = format!("GIL, {track}");
    scene.write(tid, 2_800 * US, 10 * US, What::GilWait);
    scene.note((&gil, "GIL wait", "gil"), 2_800 * US, Some(10 * US), &[]);
    scene.write(tid, 2_860 * US, 0, What::GilForced);
    scene.note(
        (&gil, "GIL given up on demand", "gil"),
        2_860 * US,
        None,
        &[],
    );
    scene.write(tid, 2_810 * US, 50 * US, What::GilHold);
    scene.note((&gil, "GIL hold", "gil"), 2_810 * US, Some(50 * US), &[]);
    scene.write(tid, 2_900 * US, 0, What::Dropped { events: 41 });
    let dropped = (track, "events dropped", "dropped");
    scene.note(dropped, 2_900 * US, None, &[("events", "41")]);
}

/// Function names of a sampled stack, the outermost first. One name contains a semicolon, the separator
/// of folded stacks.
pub(crate) const STACK: [&str; 2] = ["Engine.step (core.py:10)", "odd; name (sched.py:7)"];

/// Adds samples of a thread's stack, which are recorded by another thread.
fn samples(scene: &mut Scene, (tid, track): (u32, &str)) {
    let (sampler, track) = (tid + 1, format!("samples, {track}"));
    let asleep = format!("{}, asleep", STACK[1]);
    let all = [
        (Taken::Python, ThreadState::Running, 2, STACK[1]),
        (Taken::Python, ThreadState::Running, 1, STACK[0]),
        (Taken::Python, ThreadState::Sleeping, 2, &asleep),
        (
            Taken::NoPython,
            ThreadState::Runnable,
            0,
            "in no Python function, waiting for a processor",
        ),
        (Taken::Torn, ThreadState::Running, 0, "rejected"),
        (
            Taken::Native,
            ThreadState::Running,
            3,
            "/opt/lib/libx.so+0x1f",
        ),
        (Taken::Python, ThreadState::Running, 2, STACK[1]),
    ];
    for ((taken, state, frame, name), n) in all.into_iter().zip(0..) {
        let (start, state) = ((7_800 + n * 10) * US, Some(state));
        let what = What::Sample {
            taken,
            state,
            thread: tid,
            frame,
        };
        scene.write(sampler, start, 0, what);
        scene.note((&track, name, "sample"), start, None, &[]);
    }
    let native = "/opt/lib/libx.so+0x1f";
    for (id, parent, name) in [(1, 0, STACK[0]), (2, 1, STACK[1]), (3, 0, native)] {
        let name = scene.builder.string(sampler, name);
        scene.write(sampler, 0, 0, What::Frame { id, parent, name });
    }
}

/// Adds two scopes, the second inside the first. The first node of graph 1 was captured in the first scope. The second
/// launch of the program, at 2160 µs, is made in the second scope.
fn scopes(scene: &mut Scene) {
    for (id, name) in [(1, "model.layers.3"), (2, "sample")] {
        let name = scene.builder.string(scene.pid, name);
        let parent = id - 1;
        scene.write(scene.pid, 0, 0, What::Scope { id, parent, name });
    }
    let nodes = What::GraphNodes {
        graph: 1,
        first: 0,
        count: 1,
        scope: 1,
    };
    scene.write(scene.pid, 0, 0, nodes);
    scene.write(scene.pid, 2_155 * US, 0, What::InScope { scope: 2 });
    let exec = What::GraphExec {
        state: Some(GraphState::Known),
        exec: 4,
        graph: 1,
    };
    scene.write(scene.pid, 3_000 * US, 0, exec);
}

fn gpu(scene: &mut Scene, tid: u32) {
    let (device, stream) = (1, 2);
    let spans = "GPU 1 stream 2 iterations";
    let work = "GPU 1 stream 2";
    let name = scene.builder.string(tid, "gemm");
    let kernel = |correlation| What::GpuKernel {
        device,
        stream,
        name,
        correlation,
    };
    scopes(scene);
    // Two nodes of a graph may run at the same time. The second node was captured while no known scope (module or
    // function of the model) was open.
    for (correlation, start, long, node, scope) in [
        (7, 2_200, 100, Some(0), "model.layers.3"),
        (7, 2_250, 100, Some(1), ""),
        (8, 2_400, 3, None, "model.layers.3/sample"),
    ] {
        let (start, long) = (start * US + 1, long * US);
        scene.write(tid, start, long, kernel(correlation));
        if let Some(node) = node {
            let what = What::KernelNode {
                device,
                stream,
                exec: 4,
                node,
            };
            scene.write(tid, start, 0, what);
        }
        let number = correlation.to_string();
        let seen = (work, "gemm", "kernel");
        let args = [("correlation", &*number), ("scope", scope)];
        let args = &args[..1 + usize::from(!scope.is_empty())];
        scene.note(seen, start, Some(long), args);
    }
    let copy = What::GpuCopy {
        device,
        stream,
        kind: CopyKind::HostToDevice,
        bytes: 4096,
    };
    scene.write(tid, 2_500 * US, 2 * US, copy);
    let seen = (work, "memcpy HtoD", "memcpy");
    scene.note(seen, 2_500 * US, Some(2 * US), &[("bytes", "4096")]);
    let bytes = 1 << 40;
    let set = What::GpuSet {
        device,
        stream,
        bytes,
    };
    scene.write(tid, 2_510 * US, US, set);
    let seen = (work, "memset", "memset");
    scene.note(seen, 2_510 * US, Some(US), &[("bytes", &bytes.to_string())]);
    let span = What::GpuSpan {
        device,
        stream,
        iteration: 5,
    };
    scene.write(tid, 2_199 * US, 1_500 * US, span);
    let seen = (spans, "iteration 5", "gpu");
    scene.note(seen, 2_199 * US, Some(1_500 * US), &[]);
}
