//! Whose time the GPU's is: the kernels that were taken, by the scope that they were launched in.
//!
//! A kernel of a graph has the scope of its node, which was captured; one by itself has the scope of its call, where that is
//! known. What is not known has a reason.

mod names;

use std::collections::{BTreeMap, HashMap};

use tllmprof_record::{Event, GraphState, StringId, Strings, What};

use crate::launches::Launches;
pub use names::Pattern;

/// How many scopes, runs of nodes, graphs, changes of scope and kernels by themselves are kept.
const LIMIT: usize = 1 << 20;
/// The scope that there was no room for.
const NO_ROOM: u32 = (1 << 24) - 1;

/// The layers of a process.
#[derive(Debug, Default)]
pub struct Layers {
    /// By scope, each kernel in one of them, the longest first.
    pub rows: Vec<Layer>,
    /// The same, with those within, by name with `*` for numbers: as a tree.
    pub patterns: Vec<Pattern>,
    /// What has no scope, by reason, the longest first.
    pub unknown: Vec<Unknown>,
    /// All of them together.
    pub kernels: u64,
    pub ns: u64,
}

/// The kernels that were launched in a scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Empty: in none.
    pub name: String,
    pub kernels: u64,
    pub ns: u64,
}

/// Kernels whose scope is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown {
    pub why: Why,
    pub kernels: u64,
    pub ns: u64,
}

/// Why a scope is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Why {
    /// The graph's, or of a state that a later version writes.
    Graph(Option<GraphCode>),
    /// Nobody said what the graph was: the process ended, or CUPTI does not name it.
    NoGraph,
    /// The node was made by a call that was not followed.
    Node,
    /// Which call launched it.
    Call,
    /// There was no room for the scope.
    Room,
}

/// A [`GraphState`] in its order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphCode(u8);

impl Why {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Graph(Some(GraphCode(code))) => match code {
                _ if code == GraphState::Differs as u8 => {
                    "a kernel at replay was not the one that was captured"
                }
                _ if code == GraphState::NotCaptured as u8 => {
                    "the graph was not captured while layers were followed"
                }
                _ if code == GraphState::Nested as u8 => {
                    "the graph has child graphs, conditional or empty nodes"
                }
                _ if code == GraphState::Unnamed as u8 => {
                    "the graph was made before layers were followed, or destroyed while kernels were taken"
                }
                _ if code == GraphState::TooMany as u8 => "too many graphs or nodes",
                _ => "the graph was changed after its capture",
            },
            Self::Graph(None) | Self::NoGraph => "nothing is known of the graph",
            Self::Node => "a node of the graph whose call was not followed",
            Self::Call => "the call that launched it is not known",
            Self::Room => "too many scopes",
        }
    }
}

/// What a record says of scopes, as it has it.
#[derive(Debug, Default)]
pub struct RawLayers {
    scopes: HashMap<u32, (u32, StringId)>,
    /// By graph and first node: how many, and their scope.
    nodes: BTreeMap<(u32, u32), (u16, u32)>,
    /// By number: up to when, in ticks, it was in which state, made of which graph.
    execs: HashMap<u32, Vec<(u64, Option<GraphState>, u32)>>,
    /// By thread: from when on it is in which scope.
    threads: HashMap<u32, Vec<(u64, u32)>>,
    changes: usize,
    has_any: bool,
    pub left_out: u64,
}

impl RawLayers {
    pub fn take(&mut self, thread: u32, event: &Event) {
        let is_room = match event.what {
            What::Scope { id, parent, name } => {
                let is_room = self.scopes.len() < LIMIT;
                if is_room {
                    self.scopes.insert(id, (parent, name));
                }
                is_room
            }
            What::GraphNodes {
                graph,
                first,
                count,
                scope,
            } => {
                let is_room = self.nodes.len() < LIMIT;
                if is_room {
                    self.nodes.insert((graph, first), (count, scope));
                }
                is_room
            }
            What::GraphExec { state, exec, graph } => {
                let is_room = self.changes < LIMIT;
                if is_room {
                    let states = self.execs.entry(exec).or_default();
                    states.push((event.start, state, graph));
                }
                self.changes += 1;
                is_room
            }
            What::InScope { scope } => {
                let is_room = self.changes < LIMIT;
                if is_room {
                    let scopes = self.threads.entry(thread).or_default();
                    scopes.push((event.start, scope));
                }
                self.changes += 1;
                is_room
            }
            What::KernelNode { .. } => true,
            _ => return,
        };
        self.has_any = true;
        self.left_out += u64::from(!is_room);
    }

    /// All there is, in order; nothing where layers were not asked for.
    pub fn finish(mut self) -> Option<Self> {
        for states in self.execs.values_mut() {
            states.sort_by_key(|(until, ..)| *until);
        }
        for scopes in self.threads.values_mut() {
            scopes.sort_by_key(|(since, _)| *since);
        }
        self.has_any.then_some(self)
    }

    /// The scope of a graph's node at a moment.
    fn of_node(&self, exec: u32, node: u32, moment: u64) -> Result<u32, Why> {
        let states = self.execs.get(&exec).ok_or(Why::NoGraph)?;
        let at = states.partition_point(|(until, ..)| *until < moment);
        let (_, state, graph) = states.get(at).ok_or(Why::NoGraph)?;
        if *state != Some(GraphState::Known) {
            return Err(Why::Graph(state.map(|state| GraphCode(state as u8))));
        }
        let before = self.nodes.range((*graph, 0)..=(*graph, node)).next_back();
        let ((_, first), (count, scope)) = before.ok_or(Why::Node)?;
        match node - first < u32::from(*count) {
            true => Ok(*scope),
            false => Err(Why::Node),
        }
    }

    /// The scope of a call that a thread made at a moment.
    fn of_call(&self, thread: u32, moment: u64) -> Result<u32, Why> {
        let scopes = self.threads.get(&thread).ok_or(Why::Call)?;
        let after = scopes.partition_point(|(since, _)| *since <= moment);
        let (_, scope) = scopes[..after].last().ok_or(Why::Call)?;
        match *scope {
            NO_ROOM => Err(Why::Room),
            scope => Ok(scope),
        }
    }

    /// The parts of a scope's path, the outermost first.
    fn path(&self, mut scope: u32) -> Vec<StringId> {
        let mut parts = Vec::new();
        while let Some((parent, name)) = self.scopes.get(&scope)
            && parts.len() < 64
        {
            parts.push(*name);
            scope = *parent;
        }
        parts.reverse();
        parts
    }
}

/// A kernel by itself.
#[derive(Clone, Copy, Debug)]
struct Alone {
    correlation: u32,
    /// In nanoseconds, when and how long.
    start: u64,
    ns: u64,
}

/// A kernel that was read last, of which it is not known yet whether it is a graph's.
#[derive(Clone, Copy, Debug)]
struct Latest {
    device: u8,
    stream: u16,
    ticks: u64,
    alone: Alone,
    counts: bool,
}

/// The adding up of kernels by scope.
#[derive(Debug)]
pub struct LayerTally {
    raw: RawLayers,
    latest: HashMap<u32, Latest>,
    by_scope: HashMap<Result<u32, Why>, (u64, u64)>,
    alone: Vec<Alone>,
    pub left_out: u64,
}

impl LayerTally {
    pub fn new(raw: RawLayers) -> Self {
        Self {
            left_out: raw.left_out,
            raw,
            latest: HashMap::new(),
            by_scope: HashMap::new(),
            alone: Vec::new(),
        }
    }

    /// Adds an event of a thread, if it is one of these. `start` is that of a kernel in nanoseconds, if it counts.
    pub fn add(&mut self, thread: u32, event: &Event, start: impl FnOnce() -> Option<u64>) {
        match event.what {
            What::GpuKernel {
                device,
                stream,
                correlation,
                ..
            } => {
                let start = start();
                let kernel = Latest {
                    device,
                    stream,
                    ticks: event.start,
                    alone: Alone {
                        correlation,
                        start: start.unwrap_or(0),
                        ns: event.duration,
                    },
                    counts: start.is_some(),
                };
                let before = self.latest.insert(thread, kernel);
                self.is_alone(before);
            }
            What::KernelNode {
                device,
                stream,
                exec,
                node,
            } => {
                let is_its = |kernel: &&Latest| {
                    (kernel.ticks, kernel.device, kernel.stream) == (event.start, device, stream)
                };
                let Some(kernel) = self.latest.get(&thread).filter(is_its).copied() else {
                    return;
                };
                self.latest.remove(&thread);
                if kernel.counts {
                    let scope = self.raw.of_node(exec, node, event.start);
                    self.sum(scope, kernel.alone.ns);
                }
            }
            _ => (),
        }
    }

    fn is_alone(&mut self, kernel: Option<Latest>) {
        let Some(kernel) = kernel.filter(|kernel| kernel.counts) else {
            return;
        };
        if self.alone.len() < LIMIT {
            self.alone.push(kernel.alone);
        } else {
            self.sum(Err(Why::Call), kernel.alone.ns);
        }
    }

    fn sum(&mut self, scope: Result<u32, Why>, ns: u64) {
        let (kernels, total) = self.by_scope.entry(scope).or_default();
        *kernels += 1;
        *total = total.saturating_add(ns);
    }

    /// Ends the adding up. `ticks` are those of a moment in nanoseconds.
    pub fn finish(
        mut self,
        launches: &Launches,
        strings: &Strings,
        ns_of: impl Fn(u64) -> u64,
    ) -> Layers {
        let latest = std::mem::take(&mut self.latest);
        for kernel in latest.into_values() {
            self.is_alone(Some(kernel));
        }
        // Calls are known by when they began in nanoseconds.
        for scopes in self.raw.threads.values_mut() {
            for (since, _) in scopes {
                *since = ns_of(*since);
            }
        }
        for kernel in std::mem::take(&mut self.alone) {
            let scope = match launches.of_kernel(kernel.correlation, kernel.start) {
                Some(launch) => self.raw.of_call(launch.thread, launch.start),
                None => Err(Why::Call),
            };
            self.sum(scope, kernel.ns);
        }
        let mut by_name: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut layers = Layers::default();
        for (scope, (kernels, ns)) in &self.by_scope {
            layers.kernels += kernels;
            layers.ns = layers.ns.saturating_add(*ns);
            match scope {
                Ok(scope) => {
                    let parts = self.raw.path(*scope);
                    let parts = parts.iter().map(|part| crate::name(strings.get(*part)));
                    let sum = by_name.entry(names::joined(parts)).or_default();
                    *sum = (sum.0 + kernels, sum.1.saturating_add(*ns));
                }
                Err(why) => layers.unknown.push(Unknown {
                    why: *why,
                    kernels: *kernels,
                    ns: *ns,
                }),
            }
        }
        layers.patterns = names::patterns(&by_name);
        let row = |(name, (kernels, ns))| Layer { name, kernels, ns };
        layers.rows = by_name.into_iter().map(row).collect();
        layers
            .rows
            .sort_by(|a, b| (b.ns, &a.name).cmp(&(a.ns, &b.name)));
        layers
            .unknown
            .sort_by_key(|row| (u64::MAX - row.ns, row.why));
        layers
    }
}

impl Layers {
    /// What part of the time of all kernels so much is.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            all => ns as f64 / all as f64,
        }
    }
}
