//! The scopes that a record has of graphs' nodes, for the graphs of an export.
//!
//! nsys counts a graph's nodes as CUPTI does, in the order of capture, but neither names a graph in a way that another run
//! would. So a graph is one of the record's that have the same kernels in the same nodes, and where these have not all the
//! same scope for a node, that of the node is not known.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use tllmprof_record::{Entry, Strings, What};
use tllmprof_report::{Process, Recording, kernel_name};

/// Maximum number of nodes to read.
const NODES: usize = 1 << 20;

/// A graph's kernels by node.
pub type Kernels = BTreeMap<u32, String>;

/// An executable graph of a record: by node its kernel, and the name of the scope, if that is known.
#[derive(Default)]
struct Graph {
    nodes: BTreeMap<u32, (String, Option<String>)>,
    /// CUPTI called two graphs so.
    is_mixed: bool,
}

/// The graphs of a record, and the scopes of their nodes.
#[derive(Debug)]
pub struct Scopes {
    /// The number of graphs with the same kernels, by their kernels, and the scopes that all of these graphs have.
    graphs: HashMap<Kernels, (usize, Vec<Option<String>>)>,
}

impl Scopes {
    /// Reads them from a record; `None`: it has no layers.
    ///
    /// # Errors
    /// The record cannot be read.
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
        let mut graphs: HashMap<Kernels, (usize, Vec<Option<String>>)> = HashMap::new();
        for graph in execs.into_values().filter(|graph| !graph.is_mixed) {
            let (kernels, scopes): (Kernels, Vec<_>) = graph
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

    /// The scopes of the nodes of those graphs that are known for sure: there are no more of these kernels than the record
    /// has, so that none is one that it lacks.
    pub(crate) fn find_nodes(
        &self,
        execs: &BTreeMap<u32, Kernels>,
    ) -> BTreeMap<u32, BTreeMap<u32, String>> {
        let mut alike: HashMap<&Kernels, usize> = HashMap::new();
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
