//! The driver's functions that report what is captured. While a stream is captured only these are called: the
//! driver permits them in every mode of capture, and none of them changes anything or waits.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use tllmprof_platform::function;
use tllmprof_platform::libcuda::functions;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Published;

use crate::nodes::LaunchNode;

type CuHandle = *mut c_void;

functions! {
    /// The functions of libcuda that are used here; `None` for one that it lacks.
    Functions

    // `_v2` fails for edges that have data; `_v3` returns the data in an additional argument.
    capture_2: fn(CuHandle, &mut c_int, &mut u64, &mut CuHandle, &mut CuHandle, &mut usize) = c"cuStreamGetCaptureInfo_v2";
    capture_3: fn(CuHandle, &mut c_int, &mut u64, &mut CuHandle, &mut CuHandle, &mut CuHandle, &mut usize)
        = c"cuStreamGetCaptureInfo_v3";
    count: fn(CuHandle, Option<&mut CuHandle>, &mut usize) = c"cuGraphGetNodes";
    node_type: fn(CuHandle, &mut c_int) = c"cuGraphNodeGetType";
    child: fn(CuHandle, &mut CuHandle) = c"cuGraphChildGraphNodeGetGraph";
    kernel: fn(CuHandle, &mut KernelParams) = c"cuGraphKernelNodeGetParams_v2";
}

/// The type of `cuGraphGetNodes` when it is called with room for handles.
type Nodes = unsafe extern "C" fn(CuHandle, *mut CuHandle, *mut usize) -> c_int;

lifecycle::global! {
    #[fork(keep = "the child has the driver loaded, too")]
    static FUNCTIONS: Published<Functions> = Published::none();
}

/// The handles of the default streams.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: c_int = 1;

/// The types of nodes (`CUgraphNodeType`) that matter here.
pub const KERNEL: c_int = 0;
const GRAPH: c_int = 4;
pub const CONDITIONAL: c_int = 13;
/// The largest depth to which graphs in graphs are examined.
const DEEPEST: usize = 8;

/// A stream, in the form in which a call names it.
#[derive(Clone, Copy)]
pub struct CallStream {
    pub handle: usize,
    /// True if handle 0 is the calling thread's own stream.
    pub per_thread: bool,
}

/// The nodes of a graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// The handles of the nodes, in the order in which they were made (observed on an H200, driver 580, CUDA 13.0:
    /// chains and forks of up to 4000).
    pub nodes: Vec<usize>,
    pub kernels: usize,
    /// The graphs in its nodes, in the order of the nodes.
    pub inner: Vec<Inner>,
    /// True if some nodes contain graphs that are not known.
    pub is_nested: bool,
}

/// A graph in a node of another: a child graph, or the body of a conditional node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inner {
    pub graph: usize,
    pub shape: Shape,
}

/// The structure `CUDA_KERNEL_NODE_PARAMS_v2`, with room for the additional fields of later versions.
#[repr(C)]
#[derive(Default)]
struct KernelParams {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: [usize; 2],
    /// Used instead of the function if the node's kernel belongs to no context.
    kernel: usize,
    more: [usize; 9],
}

/// The graph that a stream is captured into, and the node that the stream's next work will follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CapturePoint {
    pub graph: usize,
    /// 0: there is none, or there are several.
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

/// Returns the graph into which `stream` is captured, if it is.
pub fn captured(stream: CallStream) -> Option<CapturePoint> {
    let stream = match stream.handle {
        0 if stream.per_thread => PER_THREAD,
        // This stream cannot be captured, and asking is an error while another one is captured.
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
        // SAFETY: the driver has returned an array of that many handles, which is valid until the next call
        // for this stream; the calling thread is in a call for it.
        unsafe { nodes.cast::<CuHandle>().read() }.expose_provenance()
    } else {
        0
    };
    Some(CapturePoint {
        graph: graph.expose_provenance(),
        node,
    })
}

/// Returns the type of a node.
pub fn kind(node: usize) -> Option<c_int> {
    let mut kind = -1;
    let node_type = Functions::get()?.node_type?;
    (node_type(handle(node), &mut kind) == 0).then_some(kind)
}

/// Returns the graph in a node that has a child graph.
pub fn child(node: usize) -> Option<usize> {
    let mut graph = null_mut();
    let child = Functions::get()?.child?;
    (child(handle(node), &mut graph) == 0 && !graph.is_null()).then(|| graph.expose_provenance())
}

/// Returns the kernel of a kernel node.
pub fn kernel(node: usize) -> Option<LaunchNode> {
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

/// Returns the nodes of a graph that is no longer captured. The program uses the graph in a call that returns
/// now. `bodies` returns the bodies of a conditional node, given its graph and the node.
pub fn shape(graph: usize, bodies: &dyn Fn(usize, usize) -> Vec<usize>) -> Option<Shape> {
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

/// Returns the handles of a graph's nodes.
fn nodes(graph: usize) -> Option<Vec<usize>> {
    let count = Functions::get()?.count?;
    let mut nodes = 0;
    if count(handle(graph), None, &mut nodes) != 0 {
        return None;
    }
    if nodes == 0 {
        // Asking for none is an error.
        return Some(Vec::new());
    }
    let mut handles = vec![null_mut(); nodes];
    // The same function, with room for handles, which the safe type above cannot express.
    let address = count as *mut c_void;
    // SAFETY: `count` is `cuGraphGetNodes`, which has this type as well.
    let list: Nodes = unsafe { function::at(address) }?;
    let mut listed = nodes;
    // SAFETY: there is room for `listed` handles, the number that the driver is given.
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
