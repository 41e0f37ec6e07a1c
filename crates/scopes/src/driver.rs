//! Calls of driver functions that report on captures and graphs. The driver allows these calls in every capture mode,
//! and they neither change anything nor wait. So the library also makes them while a stream is captured.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use tllmprof_platform::function;
use tllmprof_platform::libcuda::functions;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Published;

use crate::nodes::LaunchNode;

type CuHandle = *mut c_void;

functions! {
    /// The functions of libcuda that this module calls. A function that the driver lacks is `None`.
    Functions

    // `cuStreamGetCaptureInfo_v2` fails if an edge of the graph has data (`CUgraphEdgeData`). `_v3` returns this data
    // in one more argument.
    capture_2: fn(CuHandle, &mut c_int, &mut u64, &mut CuHandle, &mut CuHandle, &mut usize) = c"cuStreamGetCaptureInfo_v2";
    capture_3: fn(CuHandle, &mut c_int, &mut u64, &mut CuHandle, &mut CuHandle, &mut CuHandle, &mut usize)
        = c"cuStreamGetCaptureInfo_v3";
    count: fn(CuHandle, Option<&mut CuHandle>, &mut usize) = c"cuGraphGetNodes";
    node_type: fn(CuHandle, &mut c_int) = c"cuGraphNodeGetType";
    child: fn(CuHandle, &mut CuHandle) = c"cuGraphChildGraphNodeGetGraph";
    kernel: fn(CuHandle, &mut KernelParams) = c"cuGraphKernelNodeGetParams_v2";
}

/// The type of `cuGraphGetNodes` for a call that passes an array for the handles.
type Nodes = unsafe extern "C" fn(CuHandle, *mut CuHandle, *mut usize) -> c_int;

lifecycle::global! {
    #[fork(keep = "the child has the driver loaded, too")]
    static FUNCTIONS: Published<Functions> = Published::none();
}

/// The special handle with which a call names the legacy default stream.
const LEGACY: usize = 1;
/// The special handle with which a call names the calling thread's default stream.
const PER_THREAD: usize = 2;
/// The value `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: c_int = 1;

/// Type of a kernel node (`CUgraphNodeType`).
pub(crate) const KERNEL: c_int = 0;
/// Type of a node with a child graph.
const GRAPH: c_int = 4;
/// Type of a conditional node.
pub(crate) const CONDITIONAL: c_int = 13;
/// Maximum depth of graphs inside graphs that is followed. Graphs that are nested deeper count as unknown.
const DEEPEST: usize = 8;

/// A stream as a call names it: a handle, and the meaning of handle 0.
#[derive(Clone, Copy)]
pub(crate) struct CallStream {
    pub handle: usize,
    /// True if handle 0 means the calling thread's default stream, and false if it means the legacy
    /// default stream.
    pub per_thread: bool,
}

/// The nodes of a graph, as the driver reports them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shape {
    /// The handles of the nodes, in the order in which they were created (observed on an H200,
    /// driver 580, CUDA 13.0: chains and forks of up to 4000).
    pub nodes: Vec<usize>,
    pub kernels: usize,
    /// The graphs inside these nodes, in the order of the nodes that contain them.
    pub inner: Vec<Inner>,
    /// True if some nodes contain graphs that could not be determined.
    pub is_nested: bool,
}

/// A graph inside a node of another graph: a child graph, or the body of a conditional node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Inner {
    pub graph: usize,
    pub shape: Shape,
}

/// The structure `CUDA_KERNEL_NODE_PARAMS_v2`, with spare words for fields that later versions add.
#[repr(C)]
#[derive(Default)]
struct KernelParams {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: [usize; 2],
    /// The kernel's handle (`CUkernel`). The driver sets this field instead of `function` if the kernel belongs to no
    /// context.
    kernel: usize,
    more: [usize; 9],
}

/// The graph into which a stream is captured, and the node that the stream's next work will follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CapturePoint {
    pub graph: usize,
    /// The handle of the node that the stream's next work will follow; 0 if there is no such node,
    /// or more than one.
    pub node: usize,
}

fn handle(of: usize) -> CuHandle {
    core::ptr::with_exposed_provenance_mut(of)
}

impl Functions {
    fn get() -> Option<&'static Self> {
        let known = FUNCTIONS.get();
        known
            .filter(|functions| functions.place.is_valid())
            .or_else(|| FUNCTIONS.publish(known, Self::load()?))
    }
}

/// Returns the graph into which `stream` is captured, and the node that the stream's next work will follow. Returns
/// `None` if the stream is not captured.
pub(crate) fn captured(stream: CallStream) -> Option<CapturePoint> {
    let stream = match stream.handle {
        0 if stream.per_thread => PER_THREAD,
        // The legacy stream cannot be captured. A query for it is an error while another stream is
        // captured.
        0 | LEGACY => return None,
        handle => handle,
    };
    let functions = Functions::get()?;
    let (mut status, mut id, mut graph) = (0, 0, null_mut());
    let (mut nodes, mut edges, mut count) = (null_mut(), null_mut(), 0);
    let stream = handle(stream);
    let result = match (functions.capture_3, functions.capture_2) {
        (Some(info), _) => info(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut edges,
            &mut count,
        ),
        (None, Some(info)) => info(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut count,
        ),
        (None, None) => return None,
    };
    if result != 0 || status != ACTIVE || graph.is_null() {
        return None;
    }
    let node = if count == 1 && !nodes.is_null() {
        // SAFETY: the driver returned an array of `count` handles. It is valid until the next call
        // for this stream, and the calling thread is inside a call of the program for this stream.
        unsafe { nodes.cast::<CuHandle>().read() }.expose_provenance()
    } else {
        0
    };
    Some(CapturePoint {
        graph: graph.expose_provenance(),
        node,
    })
}

/// Returns the type of a node (`CUgraphNodeType`); `None` if the driver does not report it.
pub(crate) fn kind(node: usize) -> Option<c_int> {
    let mut kind = -1;
    let node_type = Functions::get()?.node_type?;
    (node_type(handle(node), &mut kind) == 0).then_some(kind)
}

/// Returns the child graph inside a node; `None` if the node has none, or if the driver does not report it.
pub(crate) fn child(node: usize) -> Option<usize> {
    let mut graph = null_mut();
    let child = Functions::get()?.child?;
    (child(handle(node), &mut graph) == 0 && !graph.is_null()).then(|| graph.expose_provenance())
}

/// Returns the function and the grid of a kernel node; `None` if the driver does not report them.
pub(crate) fn kernel(node: usize) -> Option<LaunchNode> {
    let mut params = KernelParams::default();
    let kernel = Functions::get()?.kernel?;
    (kernel(handle(node), &mut params) == 0).then_some(LaunchNode {
        function: match params.function {
            0 => params.kernel,
            function => function,
        },
        grid: params.grid,
    })
}

/// Returns the current nodes of a graph, or `None` if the driver does not report them. The graph still exists, because
/// the program's call that has used it is just returning. `bodies` takes a graph and one of its conditional nodes, and
/// returns the node's bodies (the graphs inside it).
pub(crate) fn shape(graph: usize, bodies: &dyn Fn(usize, usize) -> Vec<usize>) -> Option<Shape> {
    shape_within(graph, bodies, DEEPEST)
}

fn shape_within(
    graph: usize,
    bodies: &dyn Fn(usize, usize) -> Vec<usize>,
    deepest: usize,
) -> Option<Shape> {
    let mut shape = Shape::default();
    for node in nodes(graph)? {
        let kind = kind(node)?;
        shape.kernels += usize::from(kind == KERNEL);
        if kind == GRAPH || kind == CONDITIONAL {
            let graphs = match kind {
                GRAPH => child(node).into_iter().collect(),
                _ => bodies(graph, node),
            };
            shape.is_nested |= graphs.is_empty();
            for graph in graphs {
                match deepest.checked_sub(1) {
                    Some(deepest) => {
                        let shape_of = shape_within(graph, bodies, deepest)?;
                        shape.is_nested |= shape_of.is_nested;
                        shape.inner.push(Inner {
                            graph,
                            shape: shape_of,
                        });
                    }
                    None => shape.is_nested = true,
                }
            }
        }
        shape.nodes.push(node);
    }
    Some(shape)
}

/// Returns the handles of a graph's nodes; `None` if the driver does not report them, or if their number changes while
/// they are read.
fn nodes(graph: usize) -> Option<Vec<usize>> {
    let count = Functions::get()?.count?;
    let mut nodes = 0;
    if count(handle(graph), None, &mut nodes) != 0 {
        return None;
    }
    if nodes == 0 {
        // The driver rejects an array of length 0.
        return Some(Vec::new());
    }
    let mut handles = vec![null_mut(); nodes];
    // Call the same function with an array for the handles. The type of `count`, which is safe to call, takes only an
    // optional reference to one handle.
    let address = count as *mut c_void;
    // SAFETY: `count` is `cuGraphGetNodes`, which has this type as well.
    let list: Nodes = unsafe { function::at(address) }?;
    let mut listed = nodes;
    // SAFETY: the array has space for `listed` handles, and the driver gets this number.
    if unsafe { list(handle(graph), handles.as_mut_ptr(), &raw mut listed) } != 0 {
        return None;
    }
    let is_whole = listed == nodes && handles.iter().all(|node| !node.is_null());
    is_whole.then(|| {
        handles
            .into_iter()
            .map(|node: CuHandle| node.expose_provenance())
            .collect()
    })
}
