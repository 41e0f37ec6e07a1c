//! The known facts about a graph's nodes.

use core::hash::Hasher;
use core::sync::atomic::AtomicU64;
use std::collections::HashMap;
use std::hash::DefaultHasher;
use std::sync::Arc;

use tllmprof_platform::driver::Driver;

/// A kernel launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchNode {
    /// The driver's handle of its function; 0 if a runtime that is not followed launches it.
    pub function: usize,
    pub grid: [u32; 3],
}

/// The kind of node that a call has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Made {
    Kernel(LaunchNode),
    /// A copy or a memory set: the driver may run a kernel of its own for it.
    Work,
}

/// A node of a captured graph. It takes 32 bytes, because there are many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// No call was seen that made it.
    Unseen,
    Work {
        scope: u32,
    },
    Kernel {
        scope: u32,
        launch: LaunchNode,
    },
}

impl Node {
    /// A node that a call has made in a scope.
    pub const fn seen(scope: u32, made: Made) -> Self {
        match made {
            Made::Kernel(launch) => Self::Kernel { scope, launch },
            Made::Work => Self::Work { scope },
        }
    }

    /// Returns the scope, if the call was seen.
    pub const fn scope(&self) -> Option<u32> {
        match self {
            Self::Unseen => None,
            Self::Work { scope } | Self::Kernel { scope, .. } => Some(*scope),
        }
    }

    /// Returns the launch of a kernel.
    pub const fn launch(&self) -> Option<LaunchNode> {
        match self {
            Self::Kernel { launch, .. } => Some(*launch),
            Self::Unseen | Self::Work { .. } => None,
        }
    }

    /// Returns the same node in another scope.
    pub const fn within(self, scope: u32) -> Self {
        match self {
            Self::Unseen => self,
            Self::Work { .. } => Self::Work { scope },
            Self::Kernel { launch, .. } => Self::Kernel { scope, launch },
        }
    }
}

/// A graph that was captured, and its nodes as CUPTI numbers them: in the order of capture, followed by those
/// of each graph in its nodes, including its nested graphs (observed on an H200, driver 580, CUDA 13.0).
#[derive(Debug)]
pub struct CapturedGraph {
    /// The graph's number in the record; 0 before it has one.
    pub number: u32,
    pub nodes: Vec<Node>,
    /// The total number of nodes. Nodes after the last one that was seen are not in `nodes`.
    pub total: usize,
    /// The number of nodes of the graph itself, without those of its inner graphs.
    pub own: usize,
    /// The hashes of the names of its kernels' functions, by their handles, as far as the driver returns the
    /// names.
    pub names: HashMap<usize, u64>,
    /// The [stamp](crate::paths::stamp) at which its nodes were last written.
    pub written: AtomicU64,
}

impl CapturedGraph {
    /// A graph with `own` nodes, of which `nodes` are known, and the graphs in them.
    pub fn new(number: u32, mut nodes: Vec<Node>, own: usize, inner: &[Arc<Self>]) -> Self {
        if !inner.is_empty() {
            nodes.resize(own, Node::Unseen);
        }
        let mut total = own;
        for graph in inner {
            nodes.extend_from_slice(&graph.nodes);
            total += graph.total;
            nodes.resize(total, Node::Unseen);
        }
        Self {
            number,
            nodes,
            total,
            own,
            names: HashMap::new(),
            written: AtomicU64::new(0),
        }
    }

    /// Returns its own nodes, up to the last one that was seen.
    pub fn own_nodes(&self) -> &[Node] {
        self.nodes.get(..self.own).unwrap_or(&self.nodes)
    }

    /// Asks the driver for the names of the functions, while a graph keeps the functions alive.
    pub fn learn_names(&mut self) {
        let Some(driver) = Driver::get() else { return };
        for node in &self.nodes {
            let Some(launch) = node.launch() else {
                continue;
            };
            if launch.function == 0 || self.names.contains_key(&launch.function) {
                continue;
            }
            let hash = driver.with_kernel_name(launch.function as u64, name_hash);
            self.names.extend(hash.map(|hash| (launch.function, hash)));
        }
    }
}

/// Returns the hash by which names are compared.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish()
}

/// Nodes by the driver's handles.
#[derive(Clone, Debug, Default)]
pub struct SeenNodes(pub Vec<(usize, Node)>);

// While they are captured they take up to one and a half times this size.
const _: () = assert!(size_of::<(usize, Node)>() * 3 / 2 <= 64);

impl SeenNodes {
    pub fn add(&mut self, handle: usize, node: Node) {
        if self.0.len() == self.0.capacity() {
            // Smaller steps than those of `Vec`: there are many nodes, and they stay for long.
            self.0.reserve_exact((self.0.len() / 2).max(16));
        }
        self.0.push((handle, node));
    }

    /// Sorts the nodes by their handles and keeps each once. If two threads capture the same stream, either
    /// may have made a node that both claim.
    pub fn settle(&mut self) {
        self.0.sort_by_key(|(handle, _)| *handle);
        self.0.dedup_by(|again, first| {
            let is_same = again.0 == first.0;
            if is_same {
                first.1 = Node::Unseen;
            }
            is_same
        });
    }
}
