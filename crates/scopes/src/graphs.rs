//! Follows CUDA graphs, from the calls that create their nodes until the graphs are launched.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tllmprof_platform::lifecycle;
use tllmprof_platform::sorted::sorted;
use tllmprof_record::GraphState;
use tllmprof_sync::{Guard, Lock};

use crate::driver::{self, Inner, Shape};
use crate::nodes::{CapturedGraph, Node, SeenNodes};
use crate::paths;

/// Maximum number of nodes that are stored for all graphs together. The nodes of a graph that reaches this limit count
/// as unknown. A node takes 32 bytes, and up to 60 while it is being captured.
pub(crate) const MOST_NODES: usize = 1 << 20;
/// Maximum number of captured graphs that get a number. The nodes of further graphs count as unknown.
const MOST_GRAPHS: u32 = (1 << 20) - 1;
/// The longest time that a call of the program waits for the lock of [`GRAPHS`]. The lock is
/// usually held for moments, and longer only if CUPTI is slow to return a graph's number.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

lifecycle::global! {
    stage: Sinks;

    #[fork(hold, reset)]
    static GRAPHS: Lock<Option<Box<Graphs>>> = Lock::new(None);
    /// True if a call of the program could not be processed because the lock was not free in time. The known nodes of
    /// graphs may then be incomplete.
    #[fork(reset)]
    static MISSED: AtomicBool = AtomicBool::new(false);
}

/// A CUDA graph of the program (`CUgraph`), as far as the library knows its nodes.
#[derive(Debug)]
struct ProgramGraph {
    nodes: Nodes,
    /// The nodes that contain graphs, each with the handles of the graphs inside it.
    inner: Vec<(usize, Vec<usize>)>,
    /// True until the graph's capture has ended, or until the graph has been instantiated or copied.
    is_open: bool,
    is_full: bool,
}

/// The known nodes of a graph, unordered or in the order of the graph.
#[derive(Debug)]
enum Nodes {
    /// The nodes whose creating calls the library has seen, with the driver's handles. The order of the nodes is
    /// determined only when the graph is used, for example instantiated. Asking the driver for the order at each call
    /// would be slow: the driver's answer takes longer with more nodes, and takes 1.7 µs for 1000 nodes.
    Seen(SeenNodes),
    InOrder(Arc<CapturedGraph>),
}

impl Nodes {
    /// Sorts the nodes by their handles, so that they can be looked up.
    fn settled(&mut self) -> &mut Self {
        if let Self::Seen(seen) = self {
            seen.settle();
        }
        self
    }
}

/// An executable graph (`CUgraphExec`).
#[derive(Clone, Debug)]
pub(crate) struct Exec {
    /// CUPTI's number of the executable graph, if it has been looked up.
    pub id: Option<u32>,
    pub of: GraphOrigin,
}

/// The graph from which an executable graph was instantiated.
#[derive(Clone, Debug)]
pub(crate) enum GraphOrigin {
    Captured(Arc<CapturedGraph>),
    /// The reason why the graph's nodes are not known.
    Not(GraphState),
}

#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: HashMap<usize, ProgramGraph>,
    pub execs: BTreeMap<usize, Exec>,
    /// The executable graphs whose CUPTI number is known, by this number. A graph that is destroyed
    /// stays here until the end of the window in which kernels are recorded.
    pub named: BTreeMap<u32, GraphOrigin>,
    nodes: usize,
    last: u32,
}

/// Locks the known graphs. Returns `None` if the lock is not free within the time limit.
fn lock() -> Option<Guard<'static, Option<Box<Graphs>>>> {
    let guard = GRAPHS.lock_for(LOCK_TIMEOUT);
    if guard.is_none() {
        MISSED.store(true, Ordering::Relaxed);
    }
    guard
}

fn with<T>(act: impl FnOnce(&mut Graphs) -> T) -> Option<T> {
    let mut guard = lock()?;
    let graphs = guard.get_or_insert_default();
    if MISSED.swap(false, Ordering::Relaxed) {
        graphs.forget();
    }
    Some(act(graphs))
}

/// Runs `act` with the known graphs, like [`with`]. This function is for the worker thread, which compares the replays
/// of graphs with their captures. Returns `None` if the lock is not free in time.
pub(crate) fn with_all<T>(act: impl FnOnce(&mut Graphs) -> T) -> Option<T> {
    with(act)
}

/// Asks the driver for the current nodes of a graph. Returns `None` if the driver does not report them.
fn shape(graph: usize) -> Option<Shape> {
    driver::shape(graph, &|graph, node| {
        with(|graphs| graphs.bodies(graph, node)).unwrap_or_default()
    })
}

/// Stores a node that a call has created in a graph. `handle` is the driver's handle of the node.
pub(crate) fn made(graph: usize, handle: usize, node: Node) {
    if with(|graphs| graphs.put(graph, handle, node)) == Some(false) {
        let shape = shape(graph);
        with(|graphs| {
            graphs.reopen(graph, shape.as_ref());
            graphs.put(graph, handle, node)
        });
    }
}

/// Stores the handles of the graphs that a node of a graph contains.
pub(crate) fn encloses(graph: usize, node: usize, inner: Vec<usize>) {
    with(|graphs| {
        let graph = graphs
            .graphs
            .entry(graph)
            .or_insert_with(ProgramGraph::begun);
        graph.inner.retain(|(known, _)| *known != node);
        graph.inner.push((node, inner));
    });
}

/// Called when the program changes a node inside an executable graph. The nodes of this executable
/// graph are no longer known.
pub fn is_changed(exec: usize) {
    with(|graphs| {
        if let Some(known) = graphs.execs.get_mut(&exec) {
            known.of = GraphOrigin::Not(GraphState::Changed);
            if let Some(id) = known.id {
                graphs.named.insert(id, known.of.clone());
            }
        }
    });
}

/// Called when a capture has ended. `graph` is the result, or `None` if the capture failed.
pub fn capture_ends(graph: Option<usize>) {
    with(|graphs| match graph {
        Some(graph) => {
            if let Some(graph) = graphs.graphs.get_mut(&graph) {
                graph.is_open = false;
            }
        }
        // The driver does not report which capture failed, so all graphs that are being captured are dropped. If the
        // capture of a dropped graph continues, the nodes that it has had so far are unknown.
        None => graphs.drop_graphs(|graph| graph.is_open),
    });
}

/// Called after the program instantiated the executable graph `exec` from `graph`. Stores the nodes of `graph` for
/// `exec`, or the reason why these nodes are not known.
pub fn instantiated(exec: usize, graph: usize) {
    let shape = shape(graph);
    with(|graphs| {
        let of = graphs.instantiate(graph, shape.as_ref());
        graphs.execs.insert(exec, Exec { id: None, of });
    });
}

/// Called after the program copied the graph `original` to `clone`. The nodes that are known of `original` are stored
/// for `clone`, too.
pub fn cloned(clone: usize, original: usize) {
    let shape = shape(original);
    with(|graphs| graphs.copy(clone, original, shape.as_ref()));
}

/// Called after the program updated the executable graph `exec` from `graph`. The scope of a node of `exec` stays
/// known only if the node has the same scope in `graph`.
pub fn updated(exec: usize, graph: usize) {
    let shape = shape(graph);
    with(|graphs| {
        let new = graphs.instantiate(graph, shape.as_ref());
        let Some(known) = graphs.execs.get(&exec) else {
            return;
        };
        let id = known.id;
        let of = match (&known.of, new) {
            (GraphOrigin::Captured(old), GraphOrigin::Captured(new)) => match merged(old, &new) {
                Some(nodes) => graphs.number(nodes, new.total, &[]),
                None => GraphOrigin::Not(GraphState::Changed),
            },
            _ => GraphOrigin::Not(GraphState::Changed),
        };
        if let Some(id) = id {
            graphs.named.insert(id, of.clone());
        }
        graphs.execs.insert(exec, Exec { id, of });
    });
}

/// Returns the nodes of an executable graph that was instantiated from `old` and updated from `new`. Each node has
/// the kernel of `new`. The scope of a node is known only if it is the same in both graphs. Returns `None` if the two
/// graphs do not match.
pub(crate) fn merged(old: &CapturedGraph, new: &CapturedGraph) -> Option<Vec<Node>> {
    if old.nodes.len() != new.nodes.len() || old.total != new.total {
        return None;
    }
    let pairs = old.nodes.iter().zip(&new.nodes);
    let both = pairs.map(|(old, new)| match (old.scope(), new.scope()) {
        (Some(scope), Some(now)) if scope == now => *new,
        (Some(_), Some(_)) => new.within(paths::UNKNOWN),
        _ => Node::Unseen,
    });
    Some(both.collect())
}

/// Called before the program destroys a graph. Its known nodes are removed.
pub fn graph_is_destroyed(graph: usize) {
    with(|graphs| graphs.remove(graph));
}

/// Called before the program destroys an executable graph. If its CUPTI number is known, its nodes stay known until
/// the end of the window in which kernels are recorded.
pub fn exec_is_destroyed(exec: usize) {
    with(|graphs| graphs.execs.remove(&exec));
}

/// Called when CUPTI was attached. Removes the numbers that CUPTI gave to graphs before, because they are no longer
/// valid.
pub fn forget_names() {
    with(|graphs| {
        graphs.named.clear();
        for exec in graphs.execs.values_mut() {
            exec.id = None;
        }
    });
}

/// Calls `id` for each executable graph without a CUPTI number, to get the number. Runs on the
/// library's worker thread.
///
/// The lock is held during each call of `id`, so that the graph is not destroyed meanwhile. The
/// lock is released between two graphs.
pub fn resolve(mut id: impl FnMut(usize) -> Option<u32>) {
    let mut next = 0;
    loop {
        let went_on = with(|graphs| {
            let mut rest = graphs.execs.range_mut(next..);
            let (exec, known) = rest.find(|(_, known)| known.id.is_none())?;
            known.id = id(*exec);
            if let Some(id) = known.id {
                graphs.named.insert(id, known.of.clone());
            }
            exec.checked_add(1)
        });
        match went_on.flatten() {
            Some(more) => next = more,
            None => return,
        }
    }
}

impl Graphs {
    /// Drops all graphs, because calls may have been missed and the known nodes may be incomplete.
    fn forget(&mut self) {
        self.drop_graphs(|_| true);
        for exec in self.execs.values_mut() {
            exec.of = GraphOrigin::Not(GraphState::NotCaptured);
        }
        self.named.clear();
    }

    fn remove(&mut self, graph: usize) {
        let mut gone = vec![graph];
        while let Some(graph) = gone.pop() {
            if let Some(graph) = self.graphs.remove(&graph) {
                gone.extend(graph.inner.into_iter().flat_map(|(_, inner)| inner));
            }
        }
    }

    /// Returns the graphs inside a conditional node.
    fn bodies(&self, graph: usize, node: usize) -> Vec<usize> {
        let inner = self
            .graphs
            .get(&graph)
            .map_or(&[][..], |graph| &graph.inner);
        let known = inner.iter().find(|(of, _)| *of == node);
        known.map_or_else(Vec::new, |(_, bodies)| bodies.clone())
    }

    fn drop_graphs(&mut self, which: impl Fn(&ProgramGraph) -> bool) {
        self.graphs.retain(|_, graph| !which(graph));
    }

    /// Counts the stored nodes again. A node that several graphs share is counted once.
    fn count(&mut self) {
        let graphs = self.graphs.values().map(|graph| &graph.nodes);
        let seen: usize = graphs
            .clone()
            .map(|nodes| match nodes {
                Nodes::Seen(seen) => seen.0.len(),
                Nodes::InOrder(_) => 0,
            })
            .sum();
        let in_order = graphs.filter_map(|nodes| match nodes {
            Nodes::Seen(_) => None,
            Nodes::InOrder(captured) => Some(captured),
        });
        let execs = self.execs.values().filter_map(|exec| match &exec.of {
            GraphOrigin::Captured(captured) => Some(captured),
            GraphOrigin::Not(_) => None,
        });
        let shared = in_order.chain(execs);
        let shared = shared.map(|captured| (Arc::as_ptr(captured), captured.nodes.len()));
        let mut shared = sorted(shared.collect());
        shared.dedup();
        self.nodes = seen + shared.into_iter().map(|(_, nodes)| nodes).sum::<usize>();
    }

    /// Adds a node. Returns false, and adds nothing, if the graph's capture has ended; the caller then has to call
    /// [`Graphs::reopen`] first.
    fn put(&mut self, graph: usize, handle: usize, node: Node) -> bool {
        if self.nodes >= MOST_NODES && self.graphs.get(&graph).is_none_or(|known| !known.is_full) {
            self.count(); // count again, because nodes of dropped graphs may have been freed
        }
        let graph = self.graphs.entry(graph).or_insert_with(ProgramGraph::begun);
        let Nodes::Seen(seen) = &mut graph.nodes else {
            return false;
        };
        if !graph.is_open {
            return false;
        }
        if graph.is_full || self.nodes >= MOST_NODES {
            graph.is_full = true;
        } else {
            seen.add(handle, node);
            self.nodes += 1;
        }
        true
    }

    /// Reopens a graph whose capture had ended, because the program adds more nodes to it. If the driver still reports
    /// the known nodes, these nodes stay known. Otherwise they are dropped: they belong to an earlier graph with the
    /// same handle, and the library has not noticed that this earlier graph was destroyed.
    pub(crate) fn reopen(&mut self, handle: usize, shape: Option<&Shape>) {
        let Some(graph) = self.graphs.get_mut(&handle) else {
            return;
        };
        let inner = core::mem::take(&mut graph.inner);
        let seen = match (shape, graph.nodes.settled()) {
            (Some(shape), Nodes::Seen(seen)) if shape.in_order(&seen.0).is_some() => {
                core::mem::take(seen)
            }
            (Some(shape), Nodes::InOrder(captured)) if shape.nodes.len() > captured.own => {
                let known = shape.nodes.iter().zip(captured.own_nodes());
                let known: Vec<_> = known.map(|(handle, node)| (*handle, *node)).collect();
                self.nodes += known.len();
                SeenNodes(known)
            }
            _ => SeenNodes::default(),
        };
        self.graphs.insert(
            handle,
            ProgramGraph {
                nodes: Nodes::Seen(seen),
                inner,
                ..ProgramGraph::begun()
            },
        );
    }

    /// Stores the known nodes of the graph `original` for its copy `clone`. `shape` has the current nodes of
    /// `original`.
    pub(crate) fn copy(&mut self, clone: usize, original: usize, shape: Option<&Shape>) {
        self.remove(clone);
        let of = self.instantiate(original, shape);
        let Some(graph) = self.graphs.get(&original) else {
            return;
        };
        let copy = ProgramGraph {
            // If the nodes of the original are not known, the nodes of the copy are not known,
            // either.
            nodes: match of {
                GraphOrigin::Captured(captured) => Nodes::InOrder(captured),
                GraphOrigin::Not(_) => Nodes::Seen(SeenNodes::default()),
            },
            inner: Vec::new(),
            is_open: false,
            is_full: graph.is_full,
        };
        self.graphs.insert(clone, copy);
    }

    /// Returns the known nodes of a graph, for tests.
    #[cfg(test)]
    pub(crate) fn nodes_of(&mut self, graph: usize) -> Option<HashMap<usize, Node>> {
        match self.graphs.get_mut(&graph)?.nodes.settled() {
            Nodes::Seen(seen) => Some(seen.0.iter().copied().collect()),
            Nodes::InOrder(captured) => Some(captured.nodes.iter().copied().enumerate().collect()),
        }
    }

    /// Discards the known nodes of the executable graph with this CUPTI number, because a replay
    /// ran other kernels than the capture contains.
    pub(crate) fn withdraw(&mut self, id: u32) {
        let of = GraphOrigin::Not(GraphState::Differs);
        for exec in self.execs.values_mut().filter(|exec| exec.id == Some(id)) {
            exec.of = of.clone();
        }
        self.named.insert(id, of);
    }

    /// Removes the CUPTI numbers of executable graphs that were destroyed, because destroyed graphs
    /// do not run again.
    pub(crate) fn forget_gone(&mut self) {
        let there: Vec<_> = self.execs.values().filter_map(|exec| exec.id).collect();
        self.named.retain(|id, _| there.contains(id));
    }

    /// Returns the origin of an executable graph that is instantiated now. `shape` has the graph's
    /// current nodes.
    pub(crate) fn instantiate(&mut self, handle: usize, shape: Option<&Shape>) -> GraphOrigin {
        let Some(graph) = self.graphs.get_mut(&handle) else {
            return GraphOrigin::Not(GraphState::NotCaptured);
        };
        graph.nodes.settled();
        let nodes = match (shape, &graph.nodes) {
            _ if graph.is_full => return GraphOrigin::Not(GraphState::TooMany),
            (None, _) => return GraphOrigin::Not(GraphState::NotCaptured),
            (Some(shape), _) if shape.is_nested => return GraphOrigin::Not(GraphState::Nested),
            (Some(shape), Nodes::InOrder(captured)) => {
                let own = captured.own_nodes();
                (shape.nodes.len() >= captured.own).then_some(Cow::Borrowed(own))
            }
            (Some(shape), Nodes::Seen(seen)) => shape.in_order(&seen.0).map(Cow::Owned),
        };
        let kernels = |nodes: &[Node]| nodes.iter().filter(|node| node.launch().is_some()).count();
        // `nodes` is `None` if known nodes were removed from the graph. The filter also rejects a graph that has fewer
        // kernels than are known.
        let Some((shape, nodes)) = shape
            .zip(nodes)
            .filter(|(shape, nodes)| shape.kernels >= kernels(nodes))
        else {
            return GraphOrigin::Not(GraphState::Changed);
        };
        if let Nodes::InOrder(captured) = &graph.nodes
            && captured.own == shape.nodes.len()
        {
            return GraphOrigin::Captured(captured.clone());
        }
        let nodes = nodes.into_owned();
        let inner: Result<Vec<_>, _> = shape.inner.iter().map(|inner| self.within(inner)).collect();
        let of = match inner {
            Ok(inner) => self.number(nodes, shape.nodes.len(), &inner),
            Err(why) => return GraphOrigin::Not(why),
        };
        if let (GraphOrigin::Captured(captured), Some(graph)) = (&of, self.graphs.get_mut(&handle))
        {
            graph.nodes = Nodes::InOrder(captured.clone());
            graph.is_open = false;
        }
        of
    }

    /// Returns the known nodes of `inner`, a graph inside another graph, or the reason why its nodes are not known.
    fn within(&mut self, inner: &Inner) -> Result<Arc<CapturedGraph>, GraphState> {
        match self.instantiate(inner.graph, Some(&inner.shape)) {
            GraphOrigin::Captured(captured) => Ok(captured),
            // The library knows no node of this inner graph, although it knows the outer graph. All
            // own nodes of the inner graph count as unseen.
            GraphOrigin::Not(GraphState::NotCaptured) => {
                let inner_of: Result<Vec<_>, _> = inner
                    .shape
                    .inner
                    .iter()
                    .map(|inner| self.within(inner))
                    .collect();
                let own = inner.shape.nodes.len();
                Ok(Arc::new(CapturedGraph::new(0, Vec::new(), own, &inner_of?)))
            }
            GraphOrigin::Not(why) => Err(why),
        }
    }

    /// Creates a captured graph with these nodes and gives it the next number. Returns `GraphOrigin::Not` if all
    /// numbers are used.
    fn number(
        &mut self,
        nodes: Vec<Node>,
        own: usize,
        inner: &[Arc<CapturedGraph>],
    ) -> GraphOrigin {
        if self.last >= MOST_GRAPHS {
            return GraphOrigin::Not(GraphState::TooMany);
        }
        self.last += 1;
        let mut captured = CapturedGraph::new(self.last, nodes, own, inner);
        captured.learn_names();
        GraphOrigin::Captured(Arc::new(captured))
    }
}

impl ProgramGraph {
    fn begun() -> Self {
        Self {
            nodes: Nodes::Seen(SeenNodes::default()),
            inner: Vec::new(),
            is_open: true,
            is_full: false,
        }
    }
}

impl Shape {
    /// Returns the nodes in the graph's order, up to the last node in `seen`. Returns `None` if a node in `seen` is
    /// no longer a node of the graph.
    fn in_order(&self, seen: &[(usize, Node)]) -> Option<Vec<Node>> {
        let mut nodes = Vec::with_capacity(seen.len());
        let mut left = seen.len();
        for handle in &self.nodes {
            if left == 0 {
                break;
            }
            let at = seen.binary_search_by_key(handle, |(handle, _)| *handle);
            left -= usize::from(at.is_ok());
            nodes.push(at.map_or(Node::Unseen, |at| seen[at].1));
        }
        (left == 0).then_some(nodes)
    }
}
