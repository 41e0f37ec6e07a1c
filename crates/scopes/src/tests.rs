//! Tests the open scopes of threads, and the nodes that are known of graphs, without a CUDA driver.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_record::GraphState;

use crate::driver::{Inner, Shape};
use crate::graphs::{self, GraphOrigin, Graphs};
use crate::judge::{Kernel, difference};
use crate::nodes::{CapturedGraph, LaunchNode, Made, Node};
use crate::{OWN, Within, capture_ends, native, node, paths, pop, push, push_within, stack};

/// Lock that lets only one test run at a time: all tests use the process's one table of graphs.
static GRAPHS: Mutex<()> = Mutex::new(());

fn scope() -> u32 {
    stack::with(|open| open.scope()).unwrap()
}

fn path(names: &[&str]) -> u32 {
    let within = |path, name: &&str| paths::within(path, name.as_bytes());
    names.iter().fold(paths::NONE, within)
}

#[test]
fn the_same_path_has_the_same_number() {
    let one = path(&["model", "layers.0"]);
    assert_eq!(path(&["model", "layers.0"]), one);
    assert_eq!(paths::name(one), Some(&b"layers.0"[..]));
    let others = [
        path(&["model"]),
        path(&["layers.0"]),
        path(&["model", "layers.1"]),
    ];
    assert!(!others.contains(&one) && !others.contains(&paths::NONE));
    assert_eq!(paths::within(paths::UNKNOWN, b"part"), paths::UNKNOWN);
    assert_eq!(paths::name(paths::UNKNOWN), None);
}

#[test]
fn what_is_opened_is_closed_by_its_own_domain() {
    const OTHER: usize = 0x70;
    assert_eq!(scope(), paths::NONE);
    pop(OWN);
    push(OWN, b"model");
    push(OTHER, b"range");
    push(OWN, b"model.head");
    assert_eq!(scope(), path(&["model", "range", "model.head"]));
    pop(OTHER);
    assert_eq!(scope(), path(&["model", "model.head"]));
    pop(OTHER);
    assert_eq!(
        scope(),
        path(&["model", "model.head"]),
        "it has nothing open"
    );
    pop(OWN);
    assert_eq!(scope(), path(&["model"]));
    pop(OWN);
    assert_eq!(scope(), paths::NONE);
}

/// A stand-in for code that several scopes share. The number selects the scope that it reports as
/// the current one.
struct Code(AtomicUsize);

impl Within for Code {
    fn now(&self) -> Option<&'static [u8]> {
        [None, Some(&b"layers.0"[..]), Some(b"layers.1")][self.0.load(Ordering::Relaxed)]
    }
}

#[test]
fn code_of_several_scopes_says_which_one_it_is_in() {
    const OTHER: usize = 0x90;
    static CODE: Code = Code(AtomicUsize::new(0));
    let goes_on = |to| CODE.0.store(to, Ordering::Relaxed);
    push(OTHER, b"step");
    push(OWN, b"model");
    push_within(&CODE);
    assert_eq!(scope(), path(&["step", "model"]));
    goes_on(1);
    assert_eq!(scope(), path(&["step", "model", "layers.0"]));
    push(OWN, b"op");
    goes_on(2);
    // A scope that was opened inside the shared code has the path of the moment at which it was opened.
    assert_eq!(scope(), path(&["step", "model", "layers.0", "op"]));
    pop(OWN);
    assert_eq!(scope(), path(&["step", "model", "layers.1"]));
    pop(OTHER);
    assert_eq!(scope(), path(&["model", "layers.1"]));
    pop(OWN);
    assert_eq!(scope(), path(&["model"]));
    pop(OWN);
    assert_eq!(scope(), paths::NONE);
}

#[test]
fn what_lies_too_deep_is_not_known() {
    for _ in 0..64 {
        push(OWN, b"deep");
    }
    let deepest = scope();
    assert_ne!(deepest, paths::UNKNOWN);
    push(OWN, b"deeper");
    push(OWN, b"deeper");
    assert_eq!(scope(), paths::UNKNOWN);
    pop(OWN);
    assert_eq!(scope(), paths::UNKNOWN);
    pop(OWN);
    assert_eq!(scope(), deepest);
    for _ in 0..64 {
        pop(OWN);
    }
    assert_eq!(scope(), paths::NONE);
}

#[test]
fn each_thread_has_its_own() {
    push(OWN, b"here");
    std::thread::spawn(|| assert_eq!(scope(), paths::NONE))
        .join()
        .unwrap();
    pop(OWN);
}

fn kernel(scope: u32, function: usize) -> Node {
    let grid = [function as u32, 1, 1];
    let made = Made::Kernel(LaunchNode { function, grid });
    Node::seen(scope, made)
}

/// Returns the known nodes of a graph, sorted by their handles.
fn nodes(graph: usize) -> Option<Vec<(usize, Node)>> {
    let known = graphs::with_all(|graphs| graphs.nodes_of(graph)).unwrap()?;
    let mut nodes: Vec<_> = known.into_iter().collect();
    nodes.sort_unstable_by_key(|(handle, _)| *handle);
    Some(nodes)
}

/// Returns the driver's view of a graph with these nodes, all of which are kernels.
fn shape(nodes: &[usize]) -> Shape {
    Shape {
        nodes: nodes.to_vec(),
        kernels: nodes.len(),
        inner: Vec::new(),
        is_nested: false,
    }
}

/// Returns the driver's view of a graph with these nodes. The last nodes contain the graphs
/// `inner`; all others are kernels.
fn outer(nodes: &[usize], inner: Vec<(usize, Shape)>) -> Shape {
    Shape {
        kernels: nodes.len() - inner.len(),
        inner: inner
            .into_iter()
            .map(|(graph, shape)| Inner { graph, shape })
            .collect(),
        ..shape(nodes)
    }
}

#[test]
fn nodes_are_by_their_handles_until_something_is_made_of_them() {
    let _alone = GRAPHS.lock().unwrap();
    graphs::made(0x10, 0xb0, kernel(5, 1));
    graphs::made(0x10, 0xa0, kernel(6, 2));
    let seen = [(0xa0, kernel(6, 2)), (0xb0, kernel(5, 1))];
    assert_eq!(nodes(0x10).unwrap(), seen);
    // Two threads that capture in the same stream may claim the same node. A node that was claimed twice counts as
    // unseen.
    graphs::made(0x10, 0xd0, kernel(1, 1));
    graphs::made(0x10, 0xd0, kernel(2, 1));
    let seen = [seen[0], seen[1], (0xd0, Node::Unseen)];
    assert_eq!(nodes(0x10).unwrap(), seen);
    capture_ends(Some(0x10));
    // A failed capture drops only those graphs whose capture has not ended.
    graphs::made(0x20, 0xc0, kernel(7, 3));
    capture_ends(None);
    assert_eq!(nodes(0x20), None);
    assert_eq!(nodes(0x10).unwrap(), seen);
    // A copy has the nodes of the original. A new capture under the same handle has none of the earlier nodes.
    let whole = shape(&[1, 0xb0, 2, 0xa0, 0xd0, 3]);
    graphs::with_all(|graphs| graphs.copy(0x30, 0x10, Some(&whole)));
    let in_order = [
        (0, Node::Unseen),
        (1, kernel(5, 1)),
        (2, Node::Unseen),
        (3, kernel(6, 2)),
        (4, Node::Unseen),
    ];
    assert_eq!(nodes(0x10).unwrap(), in_order);
    graphs::made(0x10, 0xb0, kernel(8, 4));
    assert_eq!(nodes(0x10).unwrap(), [(0xb0, kernel(8, 4))]);
    assert_eq!(nodes(0x30).unwrap(), in_order);
    capture_ends(Some(0x10));
    crate::graph_is_destroyed(0x10);
    crate::graph_is_destroyed(0x30);
    assert_eq!((nodes(0x10), nodes(0x30)), (None, None));
}

#[test]
fn what_is_made_of_a_graph_is_known_where_its_nodes_are() {
    let _alone = GRAPHS.lock().unwrap();
    let made_of = |nodes: &[usize], kernels: usize, is_nested: bool| {
        let shape = Shape {
            kernels,
            is_nested,
            ..shape(nodes)
        };
        for (handle, scope) in [(0xa0, 1), (0xb0, 2)] {
            graphs::made(0x10, handle, kernel(scope, scope as usize));
        }
        capture_ends(Some(0x10));
        let of = graphs::with_all(|graphs| graphs.instantiate(0x10, Some(&shape))).unwrap();
        crate::graph_is_destroyed(0x10);
        match of {
            GraphOrigin::Captured(captured) => Ok((captured.nodes.clone(), captured.total)),
            GraphOrigin::Not(why) => Err(why),
        }
    };
    let pair = vec![kernel(1, 1), kernel(2, 2)];
    assert_eq!(made_of(&[0xa0, 0xb0], 2, false), Ok((pair.clone(), 2)));
    assert_eq!(made_of(&[0xa0, 0xb0, 0xc0], 3, false), Ok((pair, 3)));
    assert_eq!(made_of(&[0xa0, 0xc0], 2, false), Err(GraphState::Changed));
    assert_eq!(made_of(&[0xa0, 0xb0], 1, false), Err(GraphState::Changed));
    assert_eq!(made_of(&[0xa0, 0xb0], 2, true), Err(GraphState::Nested));
    // The driver is asked for the graph's nodes each time the graph is used. So the library notices that the graph
    // has lost its kernel.
    graphs::made(0x10, 0xa0, kernel(1, 1));
    capture_ends(Some(0x10));
    let state = |kernels: usize| {
        let shape = Shape {
            kernels,
            ..shape(&[0xa0])
        };
        let of = graphs::with_all(|graphs| graphs.instantiate(0x10, Some(&shape))).unwrap();
        matches!(of, GraphOrigin::Captured(_))
    };
    assert_eq!([state(1), state(1), state(0)], [true, true, false]);
    crate::graph_is_destroyed(0x10);
}

/// Checks the order of the nodes of nested graphs. The order must be right even if the library did not see the calls
/// that created some of the nodes.
#[test]
fn graphs_in_a_graph_come_behind_its_own_nodes() {
    let _alone = GRAPHS.lock().unwrap();
    let add = |graph, handle, scope| graphs::made(graph, handle, kernel(scope, scope as usize));
    let work = |graph, handle| {
        let (scope, made) = (paths::NONE, Made::Work);
        graphs::made(graph, handle, Node::seen(scope, made));
    };
    add(0x10, 0x1, 1);
    work(0x10, 0x2);
    work(0x10, 0x3);
    graphs::encloses(0x10, 0x2, vec![0x20]);
    graphs::encloses(0x10, 0x3, vec![0x30]);
    add(0x20, 0x4, 2);
    work(0x20, 0x5);
    graphs::encloses(0x20, 0x5, vec![0x40]);
    add(0x30, 0x6, 3);
    add(0x40, 0x7, 4);
    // The graph 0x50 is unknown to the library, like a graph that was created before the library
    // was loaded.
    graphs::encloses(0x30, 0x8, vec![0x50]);
    work(0x30, 0x8);
    let whole = || {
        let second = outer(&[0x4, 0x5], vec![(0x40, shape(&[0x7]))]);
        let third = outer(&[0x6, 0x8], vec![(0x50, shape(&[0x9]))]);
        outer(&[0x1, 0x2, 0x3], vec![(0x20, second), (0x30, third)])
    };
    let numbered = |of: GraphOrigin| match of {
        GraphOrigin::Captured(captured) => {
            let scope = |node: &Node| node.launch().map(|launch| launch.function);
            let scopes: Vec<_> = captured.nodes.iter().map(scope).collect();
            (captured.total, scopes)
        }
        GraphOrigin::Not(why) => panic!("{why:?}"),
    };
    let expected = [
        Some(1),
        None,
        None,
        Some(2),
        None,
        Some(4),
        Some(3),
        None,
        None,
    ];
    let of = |handle, shape: &Shape| {
        numbered(graphs::with_all(|graphs| graphs.instantiate(handle, Some(shape))).unwrap())
    };
    assert_eq!(of(0x10, &whole()), (9, expected.to_vec()));
    // A copy of a graph has other handles for all nodes and inner graphs.
    graphs::with_all(|graphs| graphs.copy(0x60, 0x10, Some(&whole())));
    let again = outer(
        &[0x11, 0x12, 0x13],
        vec![(0x21, shape(&[])), (0x31, shape(&[]))],
    );
    assert_eq!(of(0x60, &again), (9, expected.to_vec()));
    // The program captures more work into the graph after its capture has ended.
    let mut grown = whole();
    grown.nodes.push(0x14);
    grown.kernels += 1;
    graphs::with_all(|graphs| graphs.reopen(0x10, Some(&grown)));
    add(0x10, 0x14, 5);
    let (total, scopes) = of(0x10, &grown);
    assert_eq!((total, scopes[3], scopes[4]), (10, Some(5), Some(2)));
    // When a graph is destroyed, the graphs inside it are destroyed, too.
    crate::graph_is_destroyed(0x10);
    crate::graph_is_destroyed(0x60);
    assert_eq!([0x20, 0x30, 0x40].map(nodes), [const { None }; 3]);
}

#[test]
fn there_is_room_for_so_many_nodes() {
    let _alone = GRAPHS.lock().unwrap();
    for handle in 1..=graphs::MOST_NODES {
        graphs::made(0x40, handle, kernel(1, 1));
    }
    graphs::made(0x50, 1, kernel(1, 1));
    assert_eq!(nodes(0x50).unwrap(), [], "there is no room");
    crate::graph_is_destroyed(0x40);
    graphs::made(0x60, 1, kernel(1, 1));
    assert_eq!(nodes(0x60).unwrap(), [(1, kernel(1, 1))], "there is again");
    for graph in [0x50, 0x60] {
        crate::graph_is_destroyed(graph);
    }
}

/// Returns a captured graph with these nodes and one more node, which is unknown. The functions 2 and 4 have names.
fn captured(nodes: &[Node]) -> CapturedGraph {
    let mut captured = CapturedGraph::new(1, nodes.to_vec(), nodes.len() + 1, &[]);
    captured.names = HashMap::from([(2, 200), (4, 400)]);
    captured
}

#[test]
fn a_graph_that_was_updated_has_the_scopes_that_both_have() {
    let old = captured(&[kernel(1, 2), kernel(3, 2), Node::Unseen, kernel(4, 5)]);
    let new = captured(&[kernel(1, 4), kernel(9, 2), kernel(3, 2), Node::Unseen]);
    let expected = [
        kernel(1, 4),
        kernel(paths::UNKNOWN, 2),
        Node::Unseen,
        Node::Unseen,
    ];
    assert_eq!(graphs::merged(&old, &new).unwrap(), expected);
    assert_eq!(graphs::merged(&old, &captured(&[kernel(1, 2)])), None);
}

#[test]
fn a_kernel_is_another_by_its_name_its_grid_or_its_number() {
    // The second node is a copy, for which the driver may run one of its own kernels.
    let copy = Node::Work { scope: 1 };
    let graph = captured(&[kernel(1, 2), copy, kernel(2, 5), kernel(3, 5)]);
    let ran = |kernels: &[(u32, u64, u32)]| {
        let kernels: Vec<_> = kernels
            .iter()
            .map(|(node, name, x)| {
                let grid = [*x, 1, 1];
                (*node, Some(Kernel { name: *name, grid }))
            })
            .collect();
        difference(&graph, &kernels)
    };
    assert_eq!(ran(&[]), None);
    assert_eq!(
        ran(&[(0, 200, 2), (1, 7, 7), (2, 9, 5), (3, 9, 5), (4, 1, 1)]),
        None
    );
    assert_eq!(ran(&[(0, 400, 2)]), Some(0), "its name");
    assert_eq!(ran(&[(0, 200, 3)]), Some(0), "its grid");
    assert_eq!(
        ran(&[(2, 9, 5), (3, 8, 5)]),
        Some(3),
        "one function has one name"
    );
    assert_eq!(ran(&[(5, 1, 1)]), Some(5), "there is no such node");
    assert_eq!(
        difference(&graph, &[(0, None)]),
        Some(0),
        "it was not always the same"
    );
}

#[test]
fn a_kernel_by_itself_is_no_node() {
    assert_eq!(node(0), None);
    assert_eq!(node(7), None);
    assert_eq!(node(3 << 32 | 9), Some((3, 9)));
}

#[test]
fn cupti_names_each_executable_graph_once() {
    let _alone = GRAPHS.lock().unwrap();
    crate::instantiated(0x100, 0x90);
    crate::instantiated(0x200, 0x90);
    let mut asked = Vec::new();
    crate::resolve(|exec| {
        asked.push(exec);
        (exec == 0x100).then_some(31)
    });
    assert_eq!(asked, [0x100, 0x200]);
    let state = |graphs: &mut Graphs| match graphs.named.get(&31) {
        Some(GraphOrigin::Not(why)) => Some(*why),
        _ => None,
    };
    // The library has seen no capture of this graph, so it knows none of its nodes.
    assert_eq!(
        graphs::with_all(state).unwrap(),
        Some(GraphState::NotCaptured)
    );
    crate::resolve(|exec| {
        assert_eq!(exec, 0x200);
        None
    });
    crate::exec_is_destroyed(0x100);
    assert!(
        graphs::with_all(state).unwrap().is_some(),
        "it may have run"
    );
    graphs::with_all(Graphs::forget_gone);
    assert_eq!(graphs::with_all(state).unwrap(), None);
    crate::exec_is_destroyed(0x200);
}

/// Enters a native call. `place` is a word on this thread's stack that stands for the return
/// address.
fn called(name: &str, mark: u32, place: &usize) -> bool {
    let value = *core::hint::black_box(place);
    let place = core::ptr::from_ref(place).expose_provenance();
    let has_room = native::has_room(place);
    if has_room {
        native::enters(name.as_bytes(), native::NativeCall { mark, place, value });
    }
    has_room
}

#[test]
fn native_calls_are_open_until_they_return_or_are_found_to_be_gone() {
    let (outer, inner) = (0x1111, 0x2222);
    assert!(called("f", 1, &outer) && called("g", 2, &inner));
    push(OWN, b"range");
    assert_eq!(scope(), path(&["f", "g", "range"]));
    // The return of the inner call also closes the calls inside it, but leaves ranges open.
    native::returns(2);
    assert_eq!(scope(), path(&["f", "range"]));
    native::returns(2);
    assert_eq!(scope(), path(&["f", "range"]), "it has returned before");
    pop(OWN);
    // Two functions end with jumps to each other, so `h` is entered twice.
    let tail = 0x3333;
    assert!(called("h", 3, &tail) && called("i", 3, &tail) && called("h", 3, &tail));
    assert_eq!(scope(), path(&["f", "h"]));
    assert!(called("i", 3, &tail));
    native::returns(3);
    assert_eq!(scope(), path(&["f"]));
    // The return address of this call has changed, so the call was left by `longjmp`.
    let mut left = 0x4444_usize;
    assert!(called("left", 4, &left));
    assert_eq!(scope(), path(&["f", "left"]));
    core::hint::black_box(&mut left);
    left = 5;
    core::hint::black_box(&left);
    assert_eq!(scope(), path(&["f"]));
    native::returns(1);
    assert_eq!(scope(), paths::NONE);
}

#[test]
fn an_exception_leaves_a_call_whose_mark_is_free_when_it_is_past() {
    let left = |place: usize| {
        let mut marks = Vec::new();
        native::take_left(place, |mark| marks.push(mark));
        marks
    };
    let (outer, inner) = (0x1111, 0x2222);
    assert!(called("f", 1, &outer) && called("g", 2, &inner));
    native::is_passed(2);
    assert_eq!(scope(), path(&["f"]));
    // No mark is freed by a call that is deeper on the stack than the unwinder. Such a call may be in a signal handler
    // that interrupted the unwinder.
    assert_eq!(left(tllmprof_platform::stack::here() - 0x4000), []);
    assert_eq!(left(core::ptr::from_ref(&outer).addr() + 0x4000), [2]);
    assert_eq!(left(usize::MAX), []);
    // The mark of a call that is not the innermost one stays in use.
    assert!(called("g", 2, &inner));
    native::is_passed(1);
    assert_eq!(left(usize::MAX), []);
    assert_eq!(scope(), paths::NONE);
}

#[test]
fn a_call_for_which_there_is_no_room_makes_the_scope_unknown() {
    let place = 0x1111;
    let elsewhere = Box::new(0x1111);
    assert!(called("f", 1, &place));
    assert!(!called("g", 2, &elsewhere), "another stack");
    assert_eq!(scope(), paths::UNKNOWN);
    native::returns(1);
    assert_eq!(scope(), paths::NONE);
    let places = [0x2222; 64];
    for (mark, place) in places.iter().rev().enumerate() {
        assert!(called("deep", mark as u32, place));
    }
    assert_ne!(scope(), paths::UNKNOWN);
    assert!(!called("deep", 64, &place));
    assert_eq!(scope(), paths::UNKNOWN);
    native::returns(63);
    assert_ne!(scope(), paths::UNKNOWN);
    native::returns(0);
    native::is_over_full();
    assert_eq!(scope(), paths::UNKNOWN);
}
