//! Tests of comparisons with a planted change: on one side, a part of each iteration takes longer, or one kernel is
//! missing, so that the iteration's time changes by about 2 %. `tllmprof compare` has to find the change and name its
//! cause. Without a change, it must report none.
//!
//! The test suite runs only a few comparisons; `scripts/compare-sweep` runs more.

use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{Batch, CallKind, ClockKind, Edge, Event, GraphState, Info, StringId, What};
use tllmprof_report::{Comparison, ComparisonOptions, Outcome, Process};

use super::{json, process};

const US: f64 = 1e3;
/// Number of runs on each side of a comparison.
const RUNS: u64 = 6;
/// Number of iterations in a run.
const ITERATIONS: u64 = 120;
/// Number of iterations at the end of a run in which kernels are recorded.
const TAKEN: u64 = 30;
/// Relative standard deviation of the iterations' times within a run.
const NOISE: f64 = 0.03;
/// Relative standard deviation of the mean times of whole runs.
const BETWEEN: f64 = 0.004;
/// Width of the range from which a run's drift is drawn. The drift is the relative change of the times from the first
/// iteration of the run to the last, and the middle of the range is 0.
const DRIFT: f64 = 0.004;
/// Time by which the planted change makes each iteration longer (or shorter, for [`Plant::KernelGone`]), in
/// nanoseconds: about 2 % of an iteration.
const MORE: f64 = 200.0 * US;
/// Number of layers of the simulated model.
const LAYERS: u32 = 4;
/// Number of launches in an iteration.
const LAUNCHES: u64 = 20;

/// The change that is planted on one of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    Nothing,
    /// The host's code between two calls takes longer.
    HostCode,
    Collections,
    GilWaits,
    /// The call that copies memory takes longer.
    Copies,
    /// Each launch takes longer.
    SlowLaunches,
    MoreLaunches,
    SlowKernel,
    NewKernel,
    /// A kernel is missing, so iterations are shorter than in the base.
    KernelGone,
    OneLayer,
    /// The command lines differ in an option, and the host's code takes longer.
    Command,
    /// Batches have more tokens.
    Batches,
}

const KINDS: [Plant; 12] = [
    Plant::HostCode,
    Plant::Collections,
    Plant::GilWaits,
    Plant::Copies,
    Plant::SlowLaunches,
    Plant::MoreLaunches,
    Plant::SlowKernel,
    Plant::NewKernel,
    Plant::KernelGone,
    Plant::OneLayer,
    Plant::Command,
    Plant::Batches,
];

impl Plant {
    /// Returns the name of the list, in the comparison's JSON, in which the planted cause must come first, and the
    /// cause's name in that list. For the list of notes, returns a part of the note's text instead of a name.
    const fn cause(self) -> (&'static str, &'static str) {
        match self {
            Self::Nothing => ("", ""),
            Self::HostCode => (
                "causes",
                "code between a wait for the GIL and cuMemcpyHtoDAsync_v2",
            ),
            Self::Collections => ("causes", "GC"),
            Self::GilWaits => ("causes", "waiting for the GIL"),
            Self::Copies => ("causes", "copies"),
            Self::SlowLaunches => ("causes", "launching"),
            Self::MoreLaunches => ("measures", "launches a step"),
            Self::SlowKernel => ("kernels", "attention"),
            Self::NewKernel => ("kernels", "dequantize"),
            Self::KernelGone => ("kernels", "activation"),
            Self::OneLayer => ("layers", "model.layers.2"),
            Self::Command => ("notes", "the commands differ: --block 16 and --block 32"),
            Self::Batches => ("notes", "tokens a step"),
        }
    }
}

/// A generator of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Skip the first numbers, because similar seeds give similar first numbers.
        (0..8).for_each(|_| {
            random.uniform();
        });
        random
    }

    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number that is nearly normally distributed, with mean 0 and standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

struct Names {
    kernels: [StringId; 4],
}

struct RecordWriter(Builder);

impl RecordWriter {
    fn put(&mut self, at: f64, long: f64, what: What) {
        self.0.push(7, &Event::new(at as u64, long as u64, what));
    }

    fn info(&mut self, key: Info, text: &str) {
        let value = u64::from(self.0.string(7, text));
        let key = Some(key);
        self.put(0.0, 0.0, What::Info { key, value });
    }

    /// Writes the command line, the rule that counts iterations, the table of calls, and a graph with the kernels of
    /// all layers.
    fn facts(&mut self, plant: Plant) -> Names {
        let block = if plant == Plant::Command { 32 } else { 16 };
        self.info(
            Info::CommandLine,
            &format!("serve --block {block} --port 80"),
        );
        self.info(Info::Rule, "cuStreamSynchronize");
        for (row, kind, name) in [
            (0, CallKind::KernelLaunch, "cuLaunchKernel"),
            (1, CallKind::Wait, "cuStreamSynchronize"),
            (2, CallKind::AsyncCopy, "cuMemcpyHtoDAsync_v2"),
        ] {
            let (kind, name) = (Some(kind), self.0.string(7, name));
            self.put(0.0, 0.0, What::CallName { row, kind, name });
        }
        for layer in 0..LAYERS {
            let name = self.0.string(7, &format!("model.layers.{layer}"));
            let (id, parent) = (layer + 1, 0);
            self.put(0.0, 0.0, What::Scope { id, parent, name });
            let (graph, first, count, scope) = (1, layer * 2, 2, id);
            let nodes = What::GraphNodes {
                graph,
                first,
                count,
                scope,
            };
            self.put(0.0, 0.0, nodes);
        }
        let kernels = ["gemm", "attention", "activation", "dequantize"];
        Names {
            kernels: kernels.map(|name| self.0.string(7, name)),
        }
    }
}

/// The parts of an iteration: their times in nanoseconds, and the numbers of its launches and tokens. A planted change
/// alters some of them.
struct Parts {
    code: f64,
    collection: f64,
    gil: f64,
    copy: f64,
    launches: u64,
    launch: f64,
    /// Times of the four kernels outside layers.
    outside: [f64; 4],
    layers: [f64; LAYERS as usize],
    tokens: i64,
}

impl Parts {
    fn new(plant: Plant, tokens: i64) -> Self {
        let mut parts = Self {
            // The host's code must be longer than 20 launches, because the report counts shorter code as a part of
            // launching.
            code: 1_600.0 * US,
            collection: 300.0 * US,
            gil: 300.0 * US,
            copy: 400.0 * US,
            launches: LAUNCHES,
            launch: 20.0 * US,
            outside: [0.0, 1_400.0 * US, MORE, 0.0],
            layers: [1_300.0 * US; LAYERS as usize],
            tokens,
        };
        match plant {
            Plant::Nothing => (),
            Plant::HostCode => parts.code += MORE,
            Plant::Collections => parts.collection += MORE,
            Plant::GilWaits => parts.gil += MORE,
            Plant::Copies => parts.copy += MORE,
            Plant::SlowLaunches => parts.launch += MORE / LAUNCHES as f64,
            Plant::MoreLaunches => parts.launches += (MORE / parts.launch) as u64,
            Plant::SlowKernel => parts.outside[1] += MORE,
            Plant::NewKernel => parts.outside[3] += MORE,
            Plant::KernelGone => parts.outside[2] = 0.0,
            Plant::OneLayer => parts.layers[2] += MORE,
            // An option may affect anything; in this test it makes the host's code longer.
            Plant::Command => parts.code += MORE,
            Plant::Batches => {
                parts.tokens *= 2;
                parts
                    .layers
                    .iter_mut()
                    .for_each(|layer| *layer += MORE / f64::from(LAYERS));
            }
        }
        parts
    }

    fn scale(&mut self, by: f64) {
        for part in [
            &mut self.code,
            &mut self.collection,
            &mut self.gil,
            &mut self.copy,
            &mut self.launch,
        ] {
            *part = (*part * by).round();
        }
        self.outside
            .iter_mut()
            .for_each(|part| *part = (*part * by).round());
        self.layers
            .iter_mut()
            .for_each(|part| *part = (*part * by).round());
    }

    /// Writes iteration `n`, which starts at `begin`. Returns its end.
    fn write(&self, n: u64, begin: f64, names: &Names, writer: &mut RecordWriter) -> f64 {
        let call = |row| {
            let (capturing, stream) = (false, 1);
            What::Call {
                row,
                capturing,
                stream,
            }
        };
        let mut at = begin;
        let (generation, collected) = (2, 10);
        writer.put(
            at,
            self.collection,
            What::Gc {
                generation,
                collected,
            },
        );
        at += self.collection;
        writer.put(at, self.gil, What::GilWait);
        at += self.gil + self.code;
        writer.put(at, self.copy, call(2));
        at += self.copy;
        for _ in 0..self.launches {
            writer.put(at, self.launch, call(0));
            at += self.launch;
        }
        let works = at;
        let is_taken = n >= ITERATIONS - TAKEN;
        let (device, stream) = (0, 1);
        for (name, long) in names.kernels.iter().zip(self.outside) {
            let (name, correlation) = (*name, 0);
            if is_taken && long > 0.0 {
                let what = What::GpuKernel {
                    device,
                    stream,
                    name,
                    correlation,
                };
                writer.put(at, long, what);
            }
            at += long;
        }
        for (node, long) in (0..).zip(
            self.layers
                .iter()
                .flat_map(|long| [(long / 2.0).round(); 2]),
        ) {
            if is_taken {
                let (name, correlation, exec) = (names.kernels[0], n as u32 + 1, 5);
                let what = What::GpuKernel {
                    device,
                    stream,
                    name,
                    correlation,
                };
                writer.put(at, long, what);
                writer.put(
                    at,
                    0.0,
                    What::KernelNode {
                        device,
                        stream,
                        exec,
                        node,
                    },
                );
            }
            at += long;
        }
        writer.put(works, at - works, call(1));
        let iteration = n as u16;
        let batch = Batch::new(self.tokens, self.tokens, 0).unwrap();
        writer.put(begin, 0.0, What::Batch { iteration, batch });
        let excluded = false;
        writer.put(begin, at - begin, What::Iteration { n, excluded });
        at
    }
}

/// Returns a run with random variation of each iteration and of the whole run, and with a drift
/// during the run.
fn run(seed: u64, plant: Plant) -> Vec<Process> {
    let mut random = Random::new(seed);
    let mut writer = RecordWriter(Builder::new(7, ClockKind::Monotonic));
    let names = writer.facts(plant);
    let whole = 1.0 + BETWEEN * random.normal();
    let drift = DRIFT * (random.uniform() - 0.5);
    let mut at = 1e6;
    for n in 0..ITERATIONS {
        let edge = match n {
            n if n == ITERATIONS - TAKEN => Some(Edge::Open),
            n if n == ITERATIONS - 1 => Some(Edge::Close),
            _ => None,
        };
        let mut parts = Parts::new(plant, 12 + (random.uniform() * 4.0) as i64);
        let noise = 1.0 + NOISE * random.normal();
        parts.scale(whole * noise * (1.0 + drift * n as f64 / ITERATIONS as f64));
        let edge = edge.map(|edge| (edge, What::KernelWindow { edge, iteration: n }));
        if let Some((Edge::Open, what)) = edge {
            writer.put(at, 0.0, what);
        }
        let end = parts.write(n, at, &names, &mut writer);
        if let Some((Edge::Close, what)) = edge {
            writer.put(end, 0.0, what);
        }
        at = end;
    }
    // In a record, an event about a graph's state is written when that state ends.
    let (state, exec, graph) = (Some(GraphState::Known), 5, 1);
    writer.put(at, 0.0, What::GraphExec { state, exec, graph });
    vec![process("record", &writer.0.bytes())]
}

/// Returns the comparison of runs without a change to runs with a planted change. Each run has a different seed.
fn pair(seed: u64, plant: Plant) -> Comparison {
    let side = |side: u64, plant| {
        let seeds = (0..RUNS).map(|n| (seed * 2 + side) * RUNS + n + 1);
        seeds.map(|seed| run(seed, plant)).collect::<Vec<_>>()
    };
    Comparison::of_runs(
        &side(0, Plant::Nothing),
        &side(1, plant),
        &ComparisonOptions::default(),
    )
}

/// Returns true if the verdict (faster or slower) fits the planted change.
fn is_found(comparison: &Comparison, plant: Plant) -> bool {
    match plant {
        Plant::KernelGone => matches!(comparison.verdict, Outcome::Faster(..)),
        _ => matches!(comparison.verdict, Outcome::Slower(..)),
    }
}

/// Returns true if the planted cause is named in the list where it is expected (see [`Plant::cause`]). In most lists it
/// must be the first row with a statistically certain change. In the list of notes, any note may contain its text.
fn is_named(comparison: &Comparison, plant: Plant) -> bool {
    let json = json(comparison);
    let (list, name) = plant.cause();
    let rows = json[list].as_array().unwrap();
    if list == "notes" {
        return rows
            .iter()
            .any(|note| note.as_str().unwrap().contains(name));
    }
    let is_certain = |row: &&Value| {
        let interval = &row["change"]["interval"];
        let bound = |place: usize| interval[place].as_f64();
        // If only one side has a row, its change counts as statistically certain.
        let is_one_sided = row["change"].is_null();
        is_one_sided || bound(0) > Some(0.0) || bound(1).is_some_and(|high| high < 0.0)
    };
    let first = match list {
        // The planted change affects several rows of this list, so check only the row with the
        // cause's name.
        "measures" => rows
            .iter()
            .find(|row| row["name"] == name)
            .filter(is_certain),
        // Skip rows that combine several layers; they precede the row of the layer with most of the
        // change.
        "layers" => {
            let is_one = |row: &&Value| !row["name"].as_str().unwrap().contains('*');
            rows.iter().filter(is_one).find(is_certain)
        }
        _ => rows.iter().find(is_certain),
    };
    first.is_some_and(|row| row["name"] == name)
}

/// Returns true if the planted cause is the first cause of the explanation. Checks that all causes of the explanation,
/// and its unexplained rest, add up to the change.
fn is_explained(comparison: &Comparison, plant: Plant) -> bool {
    let json = json(comparison);
    let why = &json["why"];
    let number = |value: &Value| value.as_f64().unwrap();
    let causes = why["causes"].as_array().unwrap();
    let sum: f64 = causes.iter().map(|cause| number(&cause["ns"])).sum();
    let change = number(&why["other_ns"]) - number(&why["base_ns"]);
    assert!(
        (sum + number(&why["rest_ns"]) - change).abs() < 1.0,
        "{why}"
    );
    let [kind, name, what] = match plant {
        Plant::Nothing => return true,
        Plant::HostCode | Plant::Command => ["idle", Plant::HostCode.cause().1, "longer"],
        Plant::Collections => ["idle", "GC", "longer"],
        Plant::GilWaits => ["idle", "waiting for the GIL", "longer"],
        Plant::Copies => ["idle", "copies", "longer"],
        Plant::SlowLaunches => ["idle", "launching", "longer"],
        Plant::MoreLaunches => ["idle", "launching", "more often"],
        Plant::SlowKernel => ["kernel", "attention", "slower"],
        Plant::NewKernel => ["kernel", "dequantize", "new"],
        Plant::KernelGone => ["kernel", "activation", "gone"],
        Plant::OneLayer => ["layer", "model.layers.2", "slower"],
        Plant::Batches => ["kernel", "gemm", "slower"],
    };
    let first = &causes[0];
    [&first["kind"], &first["name"], &first["what"]] == [kind, name, what]
}

/// Returns the number of comparisons that the test makes for each kind of planted change.
fn each() -> u64 {
    let each = std::env::var("TLLMPROF_TEST_PLANTED");
    each.map_or(1, |each| each.parse().unwrap())
}

#[test]
fn planted_changes_are_found_and_their_causes_named() {
    let each = each();
    let all = KINDS.len() as u64 * each;
    let (mut found, mut named, mut explained, mut misses) = (0, 0, 0, Vec::new());
    for (place, plant) in (0..).zip(KINDS) {
        let mut of_kind = 0;
        for seed in 0..each {
            let comparison = pair(1 + place * each + seed, plant);
            let (is_found, is_named) = (is_found(&comparison, plant), is_named(&comparison, plant));
            let is_explained = is_explained(&comparison, plant);
            explained += u64::from(is_explained);
            found += u64::from(is_found);
            of_kind += u64::from(is_named);
            if !(is_found && is_named && is_explained) {
                let text = comparison.text();
                misses.push(format!(
                    "{plant:?}: found {is_found}, named {is_named}, explained {is_explained}\n{text}"
                ));
            }
        }
        named += of_kind;
        assert!(
            of_kind * 2 > each,
            "{plant:?}: {of_kind} of {each} named\n{}",
            misses.join("\n")
        );
    }
    println!(
        "{found} of {all} changes found, {named} causes named, {explained} first in the list of causes"
    );
    let is_enough = |some: u64| some * 100 >= all * 95;
    assert!(
        is_enough(found) && is_enough(named) && is_enough(explained),
        "{}",
        misses.join("\n")
    );
}

#[test]
fn equal_runs_give_no_alarm() {
    let pairs = 20 * each();
    let alarms = (0..pairs).filter(|seed| {
        let verdict = pair(1_000_000 + seed, Plant::Nothing).verdict;
        matches!(verdict, Outcome::Faster(..) | Outcome::Slower(..))
    });
    let alarms = alarms.count() as u64;
    println!("{alarms} false alarms of {pairs}");
    assert!(alarms * 100 <= pairs, "{alarms} of {pairs}");
}
