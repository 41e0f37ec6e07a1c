//! Tests of writing and reading a ring.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::layout::{DIRECTIONS, NAME_BYTES, STEPS};
use super::*;
use crate::groups::CommunicatorId;
use crate::header::Ended;

/// The words of a ring that is in the test's memory.
struct InMemory(Box<[u64; RING_BYTES / 8]>);

impl InMemory {
    fn begun() -> Self {
        let memory = Self(Box::new([0; RING_BYTES / 8]));
        memory.block().begin(&RingFacts {
            pid: 7,
            host: b"host",
            run: "x".repeat(100).as_bytes(),
            boot: b"boot",
            is_late: true,
            now_ns: 5,
            unix_ns: 6,
        });
        memory
    }

    fn block(&self) -> &RingBlock {
        // SAFETY: the words have the size and the alignment of a ring, and only this ring writes them.
        unsafe { RingBlock::at(NonNull::from(self.0.as_slice()).cast()) }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(&self) -> Ring {
        Ring::read(&self.bytes()).unwrap()
    }
}

const ALL_REDUCE: Operation = Operation {
    collective: Collective::AllReduce,
    count: 1 << 20,
    data_type: 9,
    peer: None,
};

fn call(handle: u64, operation: Operation, captured: bool) -> RingCall {
    RingCall {
        handle,
        operation,
        stream: 3,
        thread: 9,
        captured,
    }
}

fn id(name: &[u8]) -> (CommunicatorId, u32, u32) {
    (CommunicatorId::from_bytes(name), 1, 4)
}

#[test]
fn facts_of_the_process_are_read() {
    let memory = InMemory::begun();
    memory.block().set_rank(3);
    memory.block().set_group("TP", 1, 4);
    memory.block().set_group("PP", 0, 2);
    memory.block().set_group("TP", 2, 8);
    memory.block().finish(Ended::InOrder, 99);
    let ring = memory.read();
    let facts = (ring.pid, &*ring.host, &*ring.boot, ring.run.len());
    assert_eq!(facts, (7, "host", "boot", NAME_BYTES));
    let times = (ring.begin_ns, ring.begin_unix_ns, ring.end_ns);
    assert_eq!(
        (times, ring.is_late, ring.has_ended),
        ((5, 6, 99), true, true)
    );
    assert_eq!(ring.rank, Some(3));
    let group = |name: &str, rank, size| CapturedGroup {
        name: name.to_owned(),
        rank,
        size,
    };
    assert_eq!(ring.groups, [group("TP", 2, 8), group("PP", 0, 2)]);
}

#[test]
fn the_latest_steps_are_kept() {
    let memory = InMemory::begun();
    for number in 0..300 {
        memory.block().step_begins(number, 8, 10 * number + 1);
        if number < 299 {
            memory.block().step_ends(10 * number + 2);
        }
    }
    let ring = memory.read();
    assert_eq!((ring.steps_begun, ring.step_thread), (300, 8));
    assert_eq!(ring.steps.len(), STEPS);
    let step = |number: u64, end_ns| RingStep {
        number,
        begin_ns: 10 * number + 1,
        end_ns,
    };
    assert_eq!(
        ring.steps[0],
        step(300 - STEPS as u64, Some(10 * (300 - STEPS as u64) + 2))
    );
    assert_eq!(ring.steps[STEPS - 1], step(299, None));
}

#[test]
fn collectives_are_numbered_in_their_communicator() {
    let memory = InMemory::begun();
    let block = memory.block();
    let send = Operation {
        collective: Collective::Send,
        peer: Some(0),
        ..ALL_REDUCE
    };
    for (handle, operation) in [(1, ALL_REDUCE), (2, ALL_REDUCE), (1, send), (1, ALL_REDUCE)] {
        let open = block.call_begins(&call(handle, operation, false), 20, || id(&[handle as u8]));
        if operation == send {
            block.call_ends(open.unwrap(), 21);
        }
    }
    assert_eq!(
        block.call_begins(&call(0, ALL_REDUCE, false), 20, || id(b"")),
        None
    );
    let ring = memory.read();
    let called: Vec<_> = ring
        .collectives
        .iter()
        .map(|one| (one.communicator, one.sequence, one.operation, one.end_ns))
        .collect();
    let [first, second] = [1_u8, 2].map(|name| id(&[name]).0.number());
    let expected = [
        (first, 0, ALL_REDUCE, None),
        (second, 0, ALL_REDUCE, None),
        (first, 0, send, Some(21)),
        (first, 1, ALL_REDUCE, None),
    ];
    assert_eq!(called, expected);
    assert_eq!(ring.communicators[0].place, Some((1, 4)));
    assert_eq!(ring.communicators[0].sequence, 2);
    assert_eq!(
        (ALL_REDUCE.bytes(), ALL_REDUCE.type_name()),
        (Some(2 << 20), "bfloat16")
    );
}

#[test]
fn sends_and_receives_are_counted_for_each_other_rank() {
    let memory = InMemory::begun();
    let block = memory.block();
    let with = |collective, peer| Operation {
        collective,
        peer: Some(peer),
        ..ALL_REDUCE
    };
    let calls = [
        (1, Collective::Send, 3),
        (1, Collective::Receive, 3),
        (1, Collective::Send, 3),
        (2, Collective::Send, 3),
    ];
    for (handle, collective, peer) in calls {
        block.call_begins(&call(handle, with(collective, peer), false), 1, || {
            id(&[handle as u8])
        });
    }
    let counts = |ring: &Ring, index: usize| {
        let all = ring.communicators[index].directions.clone();
        all.map(|all| {
            let all = all.iter();
            all.map(|one| (one.collective, one.peer, one.count))
                .collect::<Vec<_>>()
        })
    };
    let ring = memory.read();
    let sequences: Vec<_> = ring.collectives.iter().map(|one| one.sequence).collect();
    assert_eq!(sequences, [0, 0, 1, 0]);
    let first = vec![(Collective::Send, 3, 2), (Collective::Receive, 3, 1)];
    assert_eq!(counts(&ring, 0), Some(first));
    assert_eq!(counts(&ring, 1), Some(vec![(Collective::Send, 3, 1)]));
    // A new communicator takes over the entry of a forgotten one. Its counts begin at 0.
    block.forget_communicator(1);
    let again = with(Collective::Receive, 3);
    block.call_begins(&call(5, again, false), 1, || id(b"5"));
    let second = vec![(Collective::Send, 3, 0), (Collective::Receive, 3, 1)];
    assert_eq!(counts(&memory.read(), 0), Some(second));
    // There are more ranks than entries here, so some sends are not counted. The counts of the communicator must then
    // be reported as unknown.
    for peer in 0..=DIRECTIONS as u32 {
        let send = with(Collective::Send, peer);
        block.call_begins(&call(5, send, false), 1, || id(b"5"));
    }
    assert_eq!(counts(&memory.read(), 0), None);
    // Version 1 of the format did not count sends and receives by rank.
    block.version.store(1, Ordering::Relaxed);
    assert_eq!(counts(&memory.read(), 1), None);
}

#[test]
fn a_handle_that_is_used_again_is_another_communicator() {
    let memory = InMemory::begun();
    let block = memory.block();
    for name in [b"a", b"b"] {
        block.call_begins(&call(1, ALL_REDUCE, false), 1, || id(name));
        block.forget_communicator(1);
    }
    let ring = memory.read();
    let sequences: Vec<_> = ring.collectives.iter().map(|one| one.sequence).collect();
    assert_eq!((sequences, ring.communicators.len()), (vec![0, 0], 0));
    assert_ne!(
        ring.collectives[0].communicator,
        ring.collectives[1].communicator
    );
}

#[test]
fn captured_collectives_are_listed_and_not_numbered() {
    let memory = InMemory::begun();
    let smaller = Operation {
        count: 8,
        ..ALL_REDUCE
    };
    for operation in [ALL_REDUCE, ALL_REDUCE, smaller] {
        let open = memory
            .block()
            .call_begins(&call(1, operation, true), 1, || id(b"a"));
        assert_eq!(open, None);
    }
    memory
        .block()
        .call_begins(&call(1, ALL_REDUCE, false), 1, || id(b"a"));
    let ring = memory.read();
    let listed: Vec<_> = ring
        .captured
        .iter()
        .map(|one| (one.operation, one.times))
        .collect();
    assert_eq!(listed, [(ALL_REDUCE, 2), (smaller, 1)]);
    assert_eq!(
        (ring.collectives.len(), ring.collectives[0].sequence),
        (1, 0)
    );
}

#[test]
fn what_is_no_ring_is_refused() {
    let memory = InMemory::begun();
    let bytes = memory.bytes();
    for length in [0, 5, 1000] {
        assert_eq!(Ring::read(&bytes[..length]), Err(NoRing::Cut(length)));
    }
    assert_eq!(Ring::read(b"text"), Err(NoRing::Other));
    assert_eq!(Ring::read(&vec![0; RING_BYTES]), Err(NoRing::Other));
    memory
        .block()
        .version
        .store(RING_VERSION + 1, Ordering::Relaxed);
    assert_eq!(
        Ring::read(&memory.bytes()),
        Err(NoRing::Version(RING_VERSION + 1))
    );
}

#[test]
fn whatever_the_bytes_are_they_are_read_without_a_panic() {
    let memory = InMemory::begun();
    let mut bytes = vec![0xff; RING_BYTES];
    bytes[..16].copy_from_slice(&memory.bytes()[..16]);
    let ring = Ring::read(&bytes).unwrap();
    assert!(ring.collectives.is_empty(), "no such operation");
}
