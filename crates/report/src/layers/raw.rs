//! What a record says of scopes.

use std::collections::{BTreeMap, HashMap};

use tllmprof_record::{Event, GraphState, StringId, What};

use super::{GraphCode, Why};

/// How many scopes, runs of nodes, graphs and changes of scope are kept.
const LIMIT: usize = 1 << 20;
/// The scope that there was no room for.
const NO_ROOM: u32 = (1 << 24) - 1;

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
    pub fn of_node(&self, exec: u32, node: u32, moment: u64) -> Result<u32, Why> {
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

    /// From here on changes of scope are in nanoseconds: calls are known by when they began so.
    pub fn use_ns(&mut self, ns_of: impl Fn(u64) -> u64) {
        for (since, _) in self.threads.values_mut().flatten() {
            *since = ns_of(*since);
        }
    }

    /// The scope of a call that a thread made at a moment.
    pub fn of_call(&self, thread: u32, moment: u64) -> Result<u32, Why> {
        let scopes = self.threads.get(&thread).ok_or(Why::Call)?;
        let after = scopes.partition_point(|(since, _)| *since <= moment);
        let (_, scope) = scopes[..after].last().ok_or(Why::Call)?;
        match *scope {
            NO_ROOM => Err(Why::Room),
            scope => Ok(scope),
        }
    }

    /// The parts of a scope's path, the outermost first.
    pub fn path(&self, mut scope: u32) -> Vec<StringId> {
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
