//! Processes calls that matter to scopes (`TLLMPROF_LAYERS`), to which GPU work is attributed. The module passes to
//! [`tllmprof_scopes`] the nodes that launches and copies add to a graph while a stream is captured, and the graphs
//! that are copied, instantiated or destroyed.

use tllmprof_calls::{Call, CallPurpose, GraphCall, Stream};
use tllmprof_scopes as scopes;
use tllmprof_scopes::{LaunchNode, Made};

use super::frame::CallFrame;
use super::thunk::Role;

/// Returns true if the library must see `call` return, to attribute GPU work to scopes such as NVTX ranges.
pub(crate) fn is_followed(call: Call) -> bool {
    match call.kind() {
        CallPurpose::Graph(_) => scopes::are_on(),
        kind => kind.makes_node() && scopes::are_noting(),
    }
}

/// Returns the call that the program made, and true if it is a driver call. Returns `None` for a function that is not
/// in the table of CUDA calls, and for a runtime call if this library handles the driver call inside it.
fn call_of(frame: &CallFrame) -> Option<(Call, bool)> {
    match frame.thunk.role() {
        Role::Driver(call) | Role::Front(call) => Some((call, true)),
        Role::Runtime(call) if !frame.thunk.is_fed(call) => Some((call, false)),
        Role::Runtime(_) | Role::ProcAddress | Role::Cupti(_) | Role::Nccl(_) => None,
    }
}

/// Called before the hooked function itself runs. Passes launches and destroyed graphs to [`tllmprof_scopes`], which
/// attributes GPU work to scopes.
#[cold]
pub(crate) fn enters(frame: &CallFrame) {
    let Some((call, is_driver)) = call_of(frame) else {
        return;
    };
    match call.kind() {
        kind if kind.makes_node() && scopes::are_noting() => {
            if let Some(stream) = stream(call, is_driver, frame) {
                scopes::node_begins(place(frame), stream, frame.thunk.is_per_thread());
            }
        }
        CallPurpose::KernelLaunch { .. } => scopes::launches(),
        CallPurpose::Graph(GraphCall::Destroy) => scopes::graph_is_destroyed(frame.args[0]),
        CallPurpose::Graph(GraphCall::DestroyExec) => scopes::exec_is_destroyed(frame.args[0]),
        _ => {}
    }
}

/// Called after the hooked function itself has returned. Passes the graph nodes and graphs that the call made to
/// [`tllmprof_scopes`], which attributes GPU work to scopes.
#[cold]
pub(crate) fn returns(frame: &CallFrame, succeeded: bool) {
    let Some((call, is_driver)) = call_of(frame) else {
        return;
    };
    let [first, second, ..] = frame.args;
    match call.kind() {
        kind if kind.makes_node() && scopes::are_noting() => {
            let made = match kind {
                CallPurpose::KernelLaunch { .. } => {
                    launch(call, is_driver, frame).map(Made::Kernel)
                }
                _ => Some(Made::Work),
            };
            if let (Some(stream), Some(made)) = (stream(call, is_driver, frame), made) {
                let per_thread = frame.thunk.is_per_thread();
                scopes::node_ends(place(frame), stream, per_thread, made, succeeded);
            }
        }
        CallPurpose::CaptureEnd => match written(second) {
            // The capture has ended, but the program passed null as the address for the graph, because it already has
            // the graph. So there is nothing to note.
            None if succeeded => {}
            graph => scopes::capture_ends(graph.filter(|_| succeeded)),
        },
        CallPurpose::Graph(what) if succeeded => match what {
            GraphCall::Instantiate => {
                if let Some(exec) = written(first) {
                    scopes::instantiated(exec, second);
                }
            }
            GraphCall::Clone => {
                if let Some(clone) = written(first) {
                    scopes::cloned(clone, second);
                }
            }
            GraphCall::Update => scopes::updated(first, second),
            GraphCall::AddNode => {
                if let Some(node) = written(first) {
                    scopes::node_is_added(second, node, [frame.args[4], frame.args[5]]);
                }
            }
            GraphCall::AddChild => {
                if let Some(node) = written(first) {
                    scopes::child_is_added(second, node, frame.args[4]);
                }
            }
            GraphCall::SetChild => scopes::is_changed(first),
            GraphCall::Destroy | GraphCall::DestroyExec => {}
        },
        _ => {}
    }
}

/// Returns a number that distinguishes this call from other calls in progress on its thread: its
/// address on the stack.
fn place(frame: &CallFrame) -> usize {
    core::ptr::from_ref(frame).addr()
}

/// Returns the handle that a successful function has written to `place`. Returns `None` if the address or the handle is
/// 0.
fn written(place: usize) -> Option<usize> {
    let place = core::ptr::with_exposed_provenance::<usize>(place);
    if place.is_null() {
        return None;
    }
    // SAFETY: the program passed this address for a handle, and the function that now returns has written one to it.
    Some(unsafe { place.read_unaligned() }).filter(|handle| *handle != 0)
}

/// Returns the handle of the stream on which a call works. Returns `None` if the call has no stream argument, or if its
/// launch configuration is null.
fn stream(call: Call, is_driver: bool, frame: &CallFrame) -> Option<usize> {
    let library = match is_driver {
        true => tllmprof_calls::Library::Driver,
        false => tllmprof_calls::Library::Runtime,
    };
    match call.stream(library) {
        Stream::None => None,
        Stream::Word(index) => Some(frame.word(index.into())),
        Stream::Configured(behind) => configuration(frame).map(|configuration| {
            // SAFETY: the program passed the address of a launch configuration, which the real function reads, too. The
            // configuration has a stream at this offset (`Stream::Configured`).
            unsafe {
                configuration
                    .add(behind.into())
                    .cast::<usize>()
                    .read_unaligned()
            }
        }),
    }
}

/// Returns the launch configuration that the first argument points to, or `None` if it is null.
fn configuration(frame: &CallFrame) -> Option<*const u8> {
    let configuration = core::ptr::with_exposed_provenance::<u8>(frame.args[0]);
    (!configuration.is_null()).then_some(configuration)
}

/// Returns the kernel and the grid of a launch call, or `None` if the launch configuration is null.
fn launch(call: Call, is_driver: bool, frame: &CallFrame) -> Option<LaunchNode> {
    let words = frame.args;
    let is_configured = matches!(
        call.stream(tllmprof_calls::Library::Driver),
        Stream::Configured(_)
    );
    let grid = match (is_configured, is_driver) {
        (true, _) => {
            let grid = configuration(frame)?.cast::<[u32; 3]>();
            // SAFETY: the call has succeeded with this launch configuration, and the configuration begins with the
            // grid.
            unsafe { grid.read_unaligned() }
        }
        (false, true) => [words[1] as u32, words[2] as u32, words[3] as u32],
        // A `dim3` has three 32-bit fields, which occupy two argument words.
        (false, false) => [
            words[1] as u32,
            (words[1] as u64 >> 32) as u32,
            words[2] as u32,
        ],
    };
    // The runtime's argument is an address in the program and not a handle of the driver, so the handle is stored as
    // 0.
    let function = match (is_driver, is_configured) {
        (true, false) => words[0],
        (true, true) => words[1],
        (false, _) => 0,
    };
    Some(LaunchNode { function, grid })
}
