//! The driver's functions that say what is captured. While a stream is captured these alone are called: the driver permits
//! them in every mode of capture, and none of them changes anything or waits.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use tllmprof_platform::function;
use tllmprof_platform::libcuda::functions;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Published;

type Handle = *mut c_void;

functions! {
    /// What is used of libcuda here; a function that it lacks is none.
    Functions

    // The second fails for edges that have data, which has a place in the third.
    capture_2: fn(Handle, &mut c_int, &mut u64, &mut Handle, &mut Handle, &mut usize) = c"cuStreamGetCaptureInfo_v2";
    capture_3: fn(Handle, &mut c_int, &mut u64, &mut Handle, &mut Handle, &mut Handle, &mut usize)
        = c"cuStreamGetCaptureInfo_v3";
    count: fn(Handle, Option<&mut Handle>, &mut usize) = c"cuGraphGetNodes";
    node_type: fn(Handle, &mut c_int) = c"cuGraphNodeGetType";
}

/// `cuGraphGetNodes` with room for handles.
type Nodes = unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> c_int;

lifecycle::global! {
    #[fork(keep = "the child has the driver loaded, too")]
    static FUNCTIONS: Published<Functions> = Published::none();
}

/// Handles that stand for the default streams.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: c_int = 1;

/// Types of nodes (`CUgraphNodeType`) that matter here.
const KERNEL: c_int = 0;
const GRAPH: c_int = 4;
const EMPTY: c_int = 5;
const CONDITIONAL: c_int = 13;

/// A stream, as a call names it.
#[derive(Clone, Copy)]
pub struct Stream {
    pub handle: usize,
    /// Handle 0 is the calling thread's own stream.
    pub per_thread: bool,
}

/// What the nodes of a graph are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Their handles, in the order in which they were made (seen on an H200, driver 580, CUDA 13.0: chains and forks of up to 4000).
    pub nodes: Vec<usize>,
    pub kernels: usize,
    /// There are nodes whose kernels, or whose followers, may be numbered in another way.
    pub is_nested: bool,
}

/// The graph that a stream is captured into, and the node that what the stream does next will follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Captured {
    pub graph: usize,
    /// 0: there is none, or there are several.
    pub node: usize,
}

fn handle(of: usize) -> Handle {
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

/// What `stream` is captured into, if it is.
pub fn captured(stream: Stream) -> Option<Captured> {
    let stream = match stream.handle {
        0 if stream.per_thread => PER_THREAD,
        // It cannot be captured, and to ask is an error beside a capture.
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
        // SAFETY: the driver has given an array of so many handles, which is there until the next call for this stream; the
        // calling thread is in a call for it.
        unsafe { nodes.cast::<Handle>().read() }.expose_provenance()
    } else {
        0
    };
    Some(Captured {
        graph: graph.expose_provenance(),
        node,
    })
}

/// What the nodes of a graph are that is captured no more. The program uses it in a call that returns now.
pub fn shape(graph: usize) -> Option<Shape> {
    let functions = Functions::get()?;
    let (count, node_type) = (functions.count?, functions.node_type?);
    let mut nodes = 0;
    if count(handle(graph), None, &mut nodes) != 0 {
        return None;
    }
    let mut handles = vec![null_mut(); nodes];
    // The same function, with room for handles: what the safe type above has no word for.
    let address = count as *mut c_void;
    // SAFETY: `count` is `cuGraphGetNodes`, which is of this type as well.
    let list: Nodes = unsafe { function::at(address) }?;
    let mut listed = nodes;
    // SAFETY: there is room for `listed` handles, which is what the driver is given.
    if unsafe { list(handle(graph), handles.as_mut_ptr(), &raw mut listed) } != 0 {
        return None;
    }
    let mut shape = Shape::default();
    for node in handles.into_iter().take(listed) {
        let mut kind = -1;
        if node.is_null() || node_type(node, &mut kind) != 0 {
            return None;
        }
        match kind {
            KERNEL => shape.kernels += 1,
            GRAPH | EMPTY | CONDITIONAL => shape.is_nested = true,
            _ => {}
        }
        shape.nodes.push(node.expose_provenance());
    }
    (listed == nodes).then_some(shape)
}
