//! Takes the scopes of graph nodes from a tllmprof record and applies them to the same graphs in an
//! export.
//!
//! Both nsys and CUPTI number the nodes of a graph in the order of capture. But neither identifies
//! a graph in a way that is the same in another run. So a graph of the export is matched with the
//! graphs of the record that have the same kernels in the same nodes. If the matching graphs of the
//! record have different scopes for a node, the scope of that node is unknown.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use tllmprof_record::{Entry, Strings, What};
use tllmprof_report::{Process, Recording, kernel_name};

/// Maximum number of nodes of CUDA graphs that are read from a record. Graphs with further nodes are not used.
const NODES: usize = 1 << 20;

/// The kernel names of one graph, by node number.
pub(crate) type NodeKernels = BTreeMap<u32, String>;

/// An executable graph of a record. Each node has the name of its kernel, and the name of its scope (such as a layer)
/// if the scope is known.
#[derive(Default)]
struct Graph {
    nodes: BTreeMap<u32, (String, Option<String>)>,
    /// True if the record contradicts itself about this graph, because CUPTI used one number for two graphs. Also
    /// true if a node of the graph was dropped because [`NODES`] nodes had been read.
    is_mixed: bool,
}

/// The graphs of a tllmprof record, with the scope (such as a layer) in which each node was
/// captured.
#[derive(Debug)]
pub struct GraphScopes {
    /// Scopes (such as layers) by the kernels of a graph. The value is the number of the record's graphs with these
    /// kernels, and the scope of each node. The scope is `None` if it is unknown or differs between these graphs.
    graphs: HashMap<NodeKernels, (usize, Vec<Option<String>>)>,
}

impl GraphScopes {
    /// Reads the scopes (such as layers) from a record. Returns `None` if the record has no layers.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub fn read(file: PathBuf, recording: &impl Recording) -> io::Result<Option<Self>> {
        let Some(layers) = Process::read(file, recording)?.layers else {
            return Ok(None);
        };
        let mut strings = Strings::default();
        recording.read(|entry| {
            if let Entry::String { id, bytes } = entry {
                strings.add(id, bytes);
            }
        })?;
        let mut latest = HashMap::new();
        let mut execs: HashMap<u32, Graph> = HashMap::new();
        let mut room = NODES;
        recording.read(|entry| {
            let Entry::Event { thread, event } = entry else {
                return;
            };
            match event.what {
                What::GpuKernel {
                    device,
                    stream,
                    name,
                    ..
                } => {
                    latest.insert(thread, (event.start, device, stream, name));
                }
                What::KernelNode {
                    device,
                    stream,
                    exec,
                    node,
                } => {
                    let Some(kernel) = latest.get(&thread) else {
                        return;
                    };
                    let (start, of_device, of_stream, name) = *kernel;
                    if (start, of_device, of_stream) != (event.start, device, stream) {
                        return;
                    }
                    let graph = execs.entry(exec).or_default();
                    let name = kernel_name(strings.get(name));
                    let scope = layers.scopes.of_node(exec, node, event.start);
                    let scope = scope.map(|scope| layers.scopes.name(scope, &strings));
                    match graph.nodes.get(&node) {
                        Some(known) => graph.is_mixed |= *known != (name, scope),
                        None if room > 0 => {
                            room -= 1;
                            graph.nodes.insert(node, (name, scope));
                        }
                        None => graph.is_mixed = true,
                    }
                }
                _ => (),
            }
        })?;
        let mut graphs: HashMap<NodeKernels, (usize, Vec<Option<String>>)> = HashMap::new();
        for graph in execs.into_values().filter(|graph| !graph.is_mixed) {
            let (kernels, scopes): (NodeKernels, Vec<_>) = graph
                .nodes
                .into_iter()
                .map(|(node, (name, scope))| ((node, name), scope))
                .unzip();
            match graphs.get_mut(&kernels) {
                Some((count, known)) => {
                    *count += 1;
                    for (known, scope) in known.iter_mut().zip(scopes) {
                        if *known != scope {
                            *known = None;
                        }
                    }
                }
                None => {
                    graphs.insert(kernels, (1, scopes));
                }
            }
        }
        Ok(Some(Self { graphs }))
    }

    /// Returns the scopes (such as layers) of graph nodes, by graph and node. `execs` contains the graphs of the
    /// export. If the export has more graphs with the same kernels than the record has, at least one of them is not in
    /// the record. Because it is unknown which one, none of them gets scopes.
    pub(crate) fn find_nodes(
        &self,
        execs: &BTreeMap<u32, NodeKernels>,
    ) -> BTreeMap<u32, BTreeMap<u32, String>> {
        let mut alike: HashMap<&NodeKernels, usize> = HashMap::new();
        for kernels in execs.values() {
            *alike.entry(kernels).or_default() += 1;
        }
        let known = execs.iter().filter_map(|(exec, kernels)| {
            let (count, scopes) = self.graphs.get(kernels)?;
            let nodes = kernels.keys().zip(scopes);
            let nodes = nodes.filter_map(|(node, scope)| Some((*node, scope.clone()?)));
            (alike[kernels] <= *count).then(|| (*exec, nodes.collect()))
        });
        known.collect()
    }
}
