//! Collects the events of a record that describe scopes: torch modules, NVTX ranges and marked
//! functions that are open.

use std::collections::{BTreeMap, HashMap};

use tllmprof_record::{Event, GraphState, StringId, What};

use super::{GraphCode, UnknownScope};

/// Maximum number of entries in the table of scopes; the same maximum applies to the table of graph nodes, and to the
/// tables of graph states and scope changes together. Further entries are dropped.
const MAX_ENTRIES: usize = 1 << 20;
/// Scope number that the recorder writes if it had no room for the scope.
const NO_ROOM: u32 = (1 << 24) - 1;

/// The captured graph that the number of an executable graph stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapturedGraph {
    pub number: u32,
    /// The time in ticks until which the number of the executable graph stands for this graph.
    pub until: u64,
}

/// The scopes of a record and their use by graphs and threads, as the record describes them.
#[derive(Debug, Default)]
pub(crate) struct RawLayers {
    scopes: HashMap<u32, (u32, StringId)>,
    /// Scopes of graph nodes. The key is a captured graph and the first of several consecutive
    /// nodes with the same scope; the value is the number of these nodes and the scope.
    nodes: BTreeMap<(u32, u32), (u16, u32)>,
    /// States of executable graphs, by graph number. Each entry has the time in ticks at which the state ended, the
    /// state, and the number of the captured graph from which the executable graph's nodes come.
    execs: HashMap<u32, Vec<(u64, Option<GraphState>, u32)>>,
    /// Scope changes of each thread: the time of the change, and the scope that is open from then
    /// on. Times are in ticks, and in nanoseconds after a call of [`Self::use_ns`].
    threads: HashMap<u32, Vec<(u64, u32)>>,
    changes: usize,
    has_any: bool,
    pub left_out: u64,
}

impl RawLayers {
    pub(crate) fn take(&mut self, thread: u32, event: &Event) {
        let is_room = match event.what {
            What::Scope { id, parent, name } => {
                let is_room = self.scopes.len() < MAX_ENTRIES;
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
                let is_room = self.nodes.len() < MAX_ENTRIES;
                if is_room {
                    self.nodes.insert((graph, first), (count, scope));
                }
                is_room
            }
            What::GraphExec { state, exec, graph } => {
                let is_room = self.changes < MAX_ENTRIES;
                if is_room {
                    let states = self.execs.entry(exec).or_default();
                    states.push((event.start, state, graph));
                }
                self.changes += 1;
                is_room
            }
            What::InScope { scope } => {
                let is_room = self.changes < MAX_ENTRIES;
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

    /// Sorts the tables for look-ups. Returns `None` if scopes were not recorded.
    pub(crate) fn finish(mut self) -> Option<Self> {
        for states in self.execs.values_mut() {
            states.sort_by_key(|(until, ..)| *until);
        }
        for scopes in self.threads.values_mut() {
            scopes.sort_by_key(|(since, _)| *since);
        }
        self.has_any.then_some(self)
    }

    /// Returns the scope in which a node of an executable graph was captured. `moment` is the start of the node's
    /// kernel in ticks. It decides which of the graph's states applies.
    pub(crate) fn of_node(&self, exec: u32, node: u32, moment: u64) -> Result<u32, UnknownScope> {
        let state = self.state(exec, moment).ok_or(UnknownScope::NoGraph)?;
        let (_, state, graph) = state;
        if *state != Some(GraphState::Known) {
            return Err(UnknownScope::Graph(
                state.map(|state| GraphCode(state as u8)),
            ));
        }
        let before = self.nodes.range((*graph, 0)..=(*graph, node)).next_back();
        let ((_, first), (count, scope)) = before.ok_or(UnknownScope::Node)?;
        match node - first < u32::from(*count) {
            true => Ok(*scope),
            false => Err(UnknownScope::Node),
        }
    }

    /// Returns the captured graph from which an executable graph was made; `None` if it is not known, or if the
    /// executable graph was changed. `moment` is the start of one of its kernels in ticks.
    pub(super) fn captured(&self, exec: u32, moment: u64) -> Option<CapturedGraph> {
        let (until, state, number) = *self.state(exec, moment)?;
        (state == Some(GraphState::Known)).then_some(CapturedGraph { number, until })
    }

    /// Returns the state that an executable graph has at a moment, as an entry of [`Self::execs`]; `None` if the record
    /// has none.
    fn state(&self, exec: u32, moment: u64) -> Option<&(u64, Option<GraphState>, u32)> {
        let states = self.execs.get(&exec)?;
        states.get(states.partition_point(|(until, ..)| *until < moment))
    }

    /// Converts the times of scope changes from ticks to nanoseconds. [`Self::of_call`] compares them with the starts
    /// of calls, which are in nanoseconds.
    pub(crate) fn use_ns(&mut self, ns_of: impl Fn(u64) -> u64) {
        for (since, _) in self.threads.values_mut().flatten() {
            *since = ns_of(*since);
        }
    }

    /// Returns the scope that was open on a thread when it made a call. `moment` is the start of the call in
    /// nanoseconds, so [`Self::use_ns`] must be called first.
    pub(crate) fn of_call(&self, thread: u32, moment: u64) -> Result<u32, UnknownScope> {
        let scopes = self.threads.get(&thread).ok_or(UnknownScope::Call)?;
        let after = scopes.partition_point(|(since, _)| *since <= moment);
        let (_, scope) = scopes[..after].last().ok_or(UnknownScope::Call)?;
        match *scope {
            NO_ROOM => Err(UnknownScope::Room),
            scope => Ok(scope),
        }
    }

    /// Returns the names of the scopes around a scope and of the scope itself, from the outermost to the innermost; at
    /// most the 64 innermost names.
    pub(crate) fn path(&self, mut scope: u32) -> Vec<StringId> {
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
