//! A process, as JSON.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::Ended;

use super::batch::{JsonBatch, JsonPhase};
use super::collectives::JsonCollective;
use super::gpu::JsonMetric;
use super::groups::{JsonCommunicator, JsonGroupRank};
use super::iterations::{JsonOutside, JsonSum, JsonWindow};
use super::layers::{JsonLayer, JsonPattern, JsonUnknown};
use super::routing::JsonRouting;
use super::stacks::JsonStacks;
use crate::iterations::unqualified::UnqualifiedSum;
use crate::kernels::Kernels;
use crate::ledger::Ledger;
use crate::ledger::difference::Difference;
use crate::ledger::slow::{CauseKind, SlowCause};
use crate::process::state::State;
use crate::process::{Named, Process};

/// A process: what its record says. What is not known is empty or `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Process")]
pub struct JsonProcess<'a> {
    /// The file that it was read from.
    file: String,
    /// Its process ID.
    pid: u32,
    /// Its parent's process ID.
    parent: u32,
    /// The host's name.
    host: &'a str,
    /// Its rank; 0 where it is not known.
    rank: u64,
    /// What its rank is known from: the name of a variable, `torch.distributed`, an engine, `NCCL`; `null`: it is not
    /// known, or the record is of an older version.
    rank_source: Option<&'a str>,
    /// How many ranks there are; `null`: not known.
    world_size: Option<u64>,
    /// Its place in all its groups, such as `TP1 of 4, DP0`; empty: none is known.
    in_groups: String,
    /// The groups of ranks that it is in, each name once; a group of a single rank is left out.
    groups: Vec<JsonGroupRank<'a>>,
    /// The communicators of NCCL that it made, in their order.
    communicators: Vec<JsonCommunicator>,
    /// The identifier of the run that it belongs to; `null`: it has none.
    run: Option<&'a str>,
    /// Its command line.
    command: &'a str,
    /// The process's own name.
    name: &'a str,
    /// What an iteration is: the rule that counts them, as `TLLMPROF_STEP` names it.
    rule: &'a str,
    /// Why that rule was chosen, where `auto` chose it.
    rule_why: &'a str,
    /// The inference or training engine, where it is a known one.
    engine: &'a str,
    /// The version of tllmprof that wrote the record.
    library: &'a str,
    /// The version of Python in the process; empty: none.
    python: &'a str,
    /// The names of the GPUs that it used.
    gpus: &'a [String],
    /// The version of the CUDA driver, as CUDA numbers it: 12040 is 12.4; `null`: not known.
    cuda_driver: Option<u64>,
    /// How the process ended.
    ended: JsonEnded,
    /// For how long the record's clock was compared with `CLOCK_MONOTONIC`, where that was too short for exact
    /// durations; `null`: durations are exact.
    clock_tied_ns: Option<u64>,
    /// What to add to a moment to get nanoseconds since 1970.
    unix_minus_monotonic_ns: i64,
    /// The windows that were asked for, as `TLLMPROF_START_STOP` has them.
    windows_asked: &'a str,
    /// The condition that the iterations of windows satisfy, as `TLLMPROF_WHERE` has it; `null`: none.
    #[serde(rename = "where")]
    condition: Option<&'a str>,
    /// The windows that opened, in the order of their iterations.
    windows: Vec<JsonWindow<'a>>,
    /// The iterations of all windows together that qualify; `null`: there are none.
    inside: Option<JsonSum>,
    /// The iterations of all windows by what was in their batches, of those where that is known.
    phases: Vec<JsonPhase>,
    /// The iterations of windows that do not qualify: with a condition those that do not satisfy it, without one the idle
    /// ones, unless all are. No other figure of windows includes them.
    unqualified: &'a [UnqualifiedSum],
    /// The iterations outside windows.
    outside: JsonOutside,
    /// Where the time of the iterations goes, by cause.
    ledger: &'a Ledger,
    /// What the threads of iterations ran, by samples of their stacks; `null`: that was not recorded.
    stacks: Option<JsonStacks<'a>>,
    /// The slowest iterations of all windows, those that took longest beyond others like them first: up to 10.
    slowest: Vec<JsonSlow<'a>>,
    /// CUDA calls inside windows, on all threads, by name; the longest in all first.
    calls: Vec<JsonNamed<'a>>,
    /// CUDA calls over the whole run, by name.
    calls_counted: Vec<JsonCounted<'a>>,
    /// Garbage collections of Python inside windows, by generation.
    gc: Vec<JsonNamed<'a>>,
    /// Objects that those collections freed.
    #[schemars(extend("unit" = "objects"))]
    gc_collected: u64,
    /// Waits for the GIL inside windows, on all threads.
    gil_wait: JsonNamed<'a>,
    /// How long threads held the GIL inside windows.
    gil_hold: JsonNamed<'a>,
    /// How often a thread inside windows had to give up the GIL because another asked for it.
    #[schemars(extend("unit" = "times"))]
    gil_forced: u64,
    /// How often the GIL went from one thread to another, as far as the recorder saw it.
    #[schemars(extend("unit" = "times"))]
    gil_handoffs: u64,
    /// Marked Python functions inside windows, by name; the longest in all first.
    functions: Vec<JsonNamed<'a>>,
    /// NVTX ranges of the program inside windows, by name; the longest in all first.
    ranges: Vec<JsonNamed<'a>>,
    #[serde(flatten)]
    kernels: &'a Kernels,
    /// The same kernels by layer, where that was followed (`--layers`); the longest in all first.
    layers: Vec<JsonLayer<'a>>,
    /// Those layers with all that is within them, by name with `*` for numbers: a tree in its order, the longest first.
    layer_patterns: Vec<JsonPattern<'a>>,
    /// The same by whole names, each layer by itself: the 4096 longest.
    layer_tree: Vec<JsonPattern<'a>>,
    /// Kernels whose layer is not known, by reason.
    layers_unknown: Vec<JsonUnknown>,
    /// What it does together with other ranks, by the kernels that were recorded.
    collectives: Vec<JsonCollective>,
    /// GPU metrics inside windows, by device and metric.
    gpu_metrics: Vec<JsonMetric>,
    /// How unevenly the learned routers of MoE layers chose experts; `null`: that was not recorded.
    routing: Option<JsonRouting<'a>>,
    /// The threads that have a name or held the GIL.
    threads: Vec<JsonThread<'a>>,
    /// The variables that set tllmprof up, as `NAME=value`.
    settings: &'a [String],
    /// What was asked for and could not be done, and why.
    refused: &'a [String],
    /// Events that the record holds.
    #[schemars(extend("unit" = "events"))]
    events: u64,
    /// Events, other than kernels, that are missing: the record was full, or a later iteration had begun already.
    #[schemars(extend("unit" = "events"))]
    dropped: u64,
    /// Older windows that are not in the record any more: they made room for later ones (`--keep`).
    #[schemars(extend("unit" = "windows"))]
    windows_dropped: u64,
    /// What the recorder itself took from the program's threads inside windows.
    own_cost_ns: u64,
    /// GPU times of iterations that could not be read.
    gpu_times_lost: u64,
    /// What became of the record.
    state: State,
    /// What was changed or is missing; `null` unless the record is damaged.
    damage: Option<String>,
    /// Things that were too many for this report, such as different names.
    left_out: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Ended")]
enum JsonEnded {
    /// Its end was not seen: it was killed, or still runs.
    #[serde(rename = "not")]
    Not,
    /// By a normal exit.
    #[serde(rename = "in order")]
    InOrder,
    /// By `_exit` or the like.
    #[serde(rename = "at once")]
    AtOnce,
    /// Not known.
    #[serde(rename = "?")]
    Unknown,
}

impl From<Option<Ended>> for JsonEnded {
    fn from(ended: Option<Ended>) -> Self {
        match ended {
            Some(Ended::Not) => Self::Not,
            Some(Ended::InOrder) => Self::InOrder,
            Some(Ended::AtOnce) => Self::AtOnce,
            None => Self::Unknown,
        }
    }
}

/// A slow iteration, and what overlapped it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Slow")]
struct JsonSlow<'a> {
    /// The iteration's number.
    n: u64,
    /// When it began.
    start_ns: u64,
    /// How long it took.
    dur_ns: u64,
    /// What was in its batch; `null`: not known.
    batch: Option<JsonBatch>,
    /// How long of that its thread waited for requests.
    idle_ns: u64,
    /// How much longer it took than the mean of the others, all without waiting for requests. Those in which kernels were
    /// recorded, which makes them longer, are compared with each other.
    more_ns: i64,
    /// What of: differences that add up to that, the greatest first and what is unexplained last.
    causes: &'a [Difference],
    /// What overlapped it, up to 8: what took longest beyond its time in the mean iteration first.
    overlaps: Vec<JsonCause<'a>>,
}

/// Something that overlapped a slow iteration.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Overlap")]
struct JsonCause<'a> {
    /// What kind of thing it is.
    kind: CauseKind,
    /// The name of the call, function or range, of the thread that held the GIL, or of the generation.
    name: &'a str,
    /// How often it overlapped the iteration.
    #[schemars(extend("unit" = "times"))]
    count: u64,
    /// For how long it overlapped the iteration.
    ns: u64,
    /// For how long it overlaps the mean iteration.
    usual_ns: u64,
}

/// Things of one name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Named")]
struct JsonNamed<'a> {
    /// Their name.
    name: &'a str,
    /// How many there were.
    #[schemars(extend("unit" = "times"))]
    count: u64,
    /// How long they took in all.
    total_ns: u64,
    /// How long the longest took.
    max_ns: u64,
}

/// CUDA calls of one name over the whole run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Counted")]
struct JsonCounted<'a> {
    /// The call's name.
    name: &'a str,
    /// How many were made inside windows.
    #[schemars(extend("unit" = "calls"))]
    inside: u64,
    /// How many were made outside windows.
    #[schemars(extend("unit" = "calls"))]
    outside: u64,
}

/// A thread.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Thread")]
struct JsonThread<'a> {
    /// The thread's ID.
    tid: u32,
    /// Its name; `null`: not known.
    name: Option<&'a str>,
    /// How long it held the GIL inside windows.
    gil_hold_ns: u64,
}

impl<'a> JsonProcess<'a> {
    pub fn of(
        process: &'a Process,
        collectives: Vec<JsonCollective>,
        each: bool,
        ranks: usize,
    ) -> Self {
        let windows = process.windows.iter().zip(&process.window_ledgers);
        let windows = windows.map(|(window, ledger)| JsonWindow::of(window, ledger, each));
        let facts = &process.facts;
        Self {
            file: process.file.display().to_string(),
            pid: process.pid,
            parent: process.parent,
            host: &facts.host,
            rank: facts.rank,
            rank_source: Some(&*facts.rank_source).filter(|source| !source.is_empty()),
            world_size: facts.world_size,
            in_groups: facts.in_groups(),
            groups: facts.groups.iter().map(Into::into).collect(),
            communicators: facts.communicators.iter().map(Into::into).collect(),
            run: Some(&*facts.run).filter(|run| !run.is_empty()),
            command: &facts.command,
            name: &facts.process,
            rule: &facts.rule,
            rule_why: &facts.rule_why,
            engine: &facts.engine,
            library: &facts.library,
            python: &facts.python,
            gpus: &facts.gpus,
            cuda_driver: facts.cuda_driver,
            ended: process.ended.into(),
            clock_tied_ns: process.tied_briefly,
            unix_minus_monotonic_ns: process.unix_minus_monotonic,
            windows_asked: &facts.windows,
            condition: Some(&*facts.condition).filter(|condition| !condition.is_empty()),
            windows: windows.collect(),
            inside: process
                .sum
                .as_ref()
                .map(|sum| JsonSum::of(sum, &process.ledger)),
            phases: process.phases.iter().map(JsonPhase::of).collect(),
            unqualified: &process.unqualified,
            outside: JsonOutside::of(&process.outside),
            ledger: &process.ledger,
            stacks: JsonStacks::of(&process.stacks),
            slowest: process
                .slowest
                .iter()
                .map(|slow| JsonSlow {
                    n: slow.n,
                    start_ns: slow.start,
                    dur_ns: slow.duration,
                    batch: JsonBatch::of(slow.batch),
                    idle_ns: slow.idle,
                    more_ns: slow.more,
                    causes: &slow.causes,
                    overlaps: slow.overlaps.iter().map(JsonCause::of).collect(),
                })
                .collect(),
            calls: process.calls.iter().map(JsonNamed::of).collect(),
            calls_counted: facts
                .calls
                .iter()
                .map(|row| JsonCounted {
                    name: &row.name,
                    inside: row.inside,
                    outside: row.outside,
                })
                .collect(),
            gc: process.gc.iter().map(JsonNamed::of).collect(),
            gc_collected: process.collected,
            gil_wait: JsonNamed::of(&process.gil_wait),
            gil_hold: JsonNamed::of(&process.gil_hold),
            gil_forced: process.gil_forced,
            gil_handoffs: process.gil_handoffs,
            functions: process.functions.iter().map(JsonNamed::of).collect(),
            ranges: process.ranges.iter().map(JsonNamed::of).collect(),
            kernels: &process.kernels,
            layers: process
                .layers
                .as_ref()
                .map(JsonLayer::all)
                .unwrap_or_default(),
            layer_patterns: process
                .layers
                .as_ref()
                .map(|layers| JsonPattern::all(layers, &layers.patterns))
                .unwrap_or_default(),
            layer_tree: process
                .layers
                .as_ref()
                .map(|layers| JsonPattern::all(layers, &layers.tree))
                .unwrap_or_default(),
            layers_unknown: process
                .layers
                .as_ref()
                .map(JsonUnknown::all)
                .unwrap_or_default(),
            collectives,
            gpu_metrics: process.metrics.iter().map(JsonMetric::of).collect(),
            routing: JsonRouting::of(&process.experts, facts, ranks),
            threads: threads(process),
            settings: &facts.settings,
            refused: &facts.refused,
            events: process.events,
            dropped: process.dropped,
            windows_dropped: process.windows_dropped,
            own_cost_ns: process.own_cost,
            gpu_times_lost: process.gpu_lost,
            state: process.state(),
            damage: (process.state() == State::Damaged).then(|| process.damage.to_string()),
            left_out: process.left_out,
        }
    }
}

/// The threads that have a name or held the GIL.
fn threads(process: &Process) -> Vec<JsonThread<'_>> {
    let names = &process.facts.threads;
    let tids: BTreeSet<_> = names.keys().chain(process.holds.keys()).collect();
    let thread = |tid: &u32| JsonThread {
        tid: *tid,
        name: names.get(tid).map(String::as_str),
        gil_hold_ns: process.holds.get(tid).copied().unwrap_or(0),
    };
    tids.into_iter().map(thread).collect()
}

impl<'a> JsonCause<'a> {
    fn of(cause: &'a SlowCause) -> Self {
        Self {
            kind: cause.kind,
            name: &cause.name,
            count: cause.count,
            ns: cause.time,
            usual_ns: cause.usual,
        }
    }
}

impl<'a> JsonNamed<'a> {
    fn of(named: &'a Named) -> Self {
        Self {
            name: &named.name,
            count: named.count,
            total_ns: named.total,
            max_ns: named.longest,
        }
    }
}
