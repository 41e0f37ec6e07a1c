//! Data about the nodes of CUDA graphs: the kernel of each node, and the scope in which the node was captured.

use core::hash::Hasher;
use core::sync::atomic::AtomicU64;
use std::collections::HashMap;
use std::hash::DefaultHasher;
use std::sync::Arc;

use tllmprof_platform::driver::Driver;

/// A kernel launch, as a node of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchNode {
    /// The driver's handle of the kernel's function. 0 if the library has seen only the launch call of the CUDA
    /// runtime, which does not contain this handle.
    pub function: usize,
    pub grid: [u32; 3],
}

/// The kind of node that a call has created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Made {
    Kernel(LaunchNode),
    /// A node that is not a kernel of the program, such as a copy, a memory set or a child graph. To run a copy or a
    /// memory set, the driver may use one of its own kernels.
    Work,
}

/// A node of a captured graph. There may be very many nodes, so a node takes only 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    /// The library did not see the call that created the node.
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
    /// Returns the node that a call has created in a scope.
    pub(crate) const fn seen(scope: u32, made: Made) -> Self {
        match made {
            Made::Kernel(launch) => Self::Kernel { scope, launch },
            Made::Work => Self::Work { scope },
        }
    }

    /// Returns the scope, or `None` if the library did not see the call that created the node.
    pub(crate) const fn scope(&self) -> Option<u32> {
        match self {
            Self::Unseen => None,
            Self::Work { scope } | Self::Kernel { scope, .. } => Some(*scope),
        }
    }

    /// Returns the kernel launch, or `None` if the node is not a known kernel.
    pub(crate) const fn launch(&self) -> Option<LaunchNode> {
        match self {
            Self::Kernel { launch, .. } => Some(*launch),
            Self::Unseen | Self::Work { .. } => None,
        }
    }

    /// Returns the same node with another scope. A node whose creating call was not seen has no scope and stays as it
    /// is.
    pub(crate) const fn within(self, scope: u32) -> Self {
        match self {
            Self::Unseen => self,
            Self::Work { .. } => Self::Work { scope },
            Self::Kernel { launch, .. } => Self::Kernel { scope, launch },
        }
    }
}

/// A graph that was captured. Its nodes are in the order of the numbers that CUPTI gives to them: the graph's own
/// nodes come first, in the order of capture. The nodes of each graph inside these nodes follow, including those of
/// graphs that are nested deeper (observed on an H200, driver 580, CUDA 13.0).
#[derive(Debug)]
pub(crate) struct CapturedGraph {
    /// The graph's number in the record; 0 until the graph gets one.
    pub number: u32,
    pub nodes: Vec<Node>,
    /// The number of all nodes. `nodes` may be shorter: it ends at the last node whose creating call the library has
    /// seen.
    pub total: usize,
    /// The number of the graph's own nodes, without those of inner graphs.
    pub own: usize,
    /// The hashes of the names of the kernels' functions, by the functions' handles. Contains only
    /// functions whose names the driver returns.
    pub names: HashMap<usize, u64>,
    /// The [stamp](crate::paths::stamp) of the record to which the nodes were last written.
    pub written: AtomicU64,
}

impl CapturedGraph {
    /// Returns a graph with `own` nodes of its own, of which the first ones are `nodes`, and with
    /// the inner graphs `inner`.
    pub(crate) fn new(number: u32, mut nodes: Vec<Node>, own: usize, inner: &[Arc<Self>]) -> Self {
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

    /// Returns the graph's own nodes, up to the last one whose creating call the library has seen.
    pub(crate) fn own_nodes(&self) -> &[Node] {
        self.nodes.get(..self.own).unwrap_or(&self.nodes)
    }

    /// Asks the driver for the names of the functions that the kernel nodes launch. These functions must still be
    /// loaded, as they are while the graph exists.
    pub(crate) fn learn_names(&mut self) {
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

/// Returns the hash that stands for a name in comparisons.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish()
}

/// The nodes of a graph whose creating calls the library has seen, each with the driver's handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenNodes(pub Vec<(usize, Node)>);

// During a capture, the list of nodes may reserve one and a half times the space that its nodes need. Even then, the
// list takes at most 64 bytes for each node.
const _: () = assert!(size_of::<(usize, Node)>() * 3 / 2 <= 64);

impl SeenNodes {
    pub(crate) fn add(&mut self, handle: usize, node: Node) {
        if self.0.len() == self.0.capacity() {
            // Grow in smaller steps than `Vec` does, because there are many nodes and they stay in memory for a long
            // time.
            self.0.reserve_exact((self.0.len() / 2).max(16));
        }
        self.0.push((handle, node));
    }

    /// Sorts the nodes by their handles and keeps each handle once. A handle occurs twice if two
    /// threads capture the same stream and both claim its node. Such a node counts as unseen.
    pub(crate) fn settle(&mut self) {
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
