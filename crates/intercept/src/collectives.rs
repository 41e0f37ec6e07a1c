//! NCCL calls with which ranks communicate, such as `ncclAllReduce`. They are noted in the recorder's ring: a file of
//! recent calls, from which a hang is diagnosed.

use tllmprof_calls::NcclCall;
use tllmprof_recorder as recorder;
use tllmprof_recorder::ring::{self, Collective, OpenCall, Operation};
use tllmprof_session as session;

use super::communicators;
use super::frame::CallFrame;

/// The collective that a function starts, and the positions of its arguments (indices, from 0).
pub(crate) struct CollectiveArguments {
    collective: Collective,
    count: usize,
    data_type: usize,
    /// The root rank of a collective, or the other rank of a send or receive. `None` if the function has no such
    /// argument.
    peer: Option<usize>,
    communicator: usize,
    stream: usize,
}

impl CollectiveArguments {
    /// Returns the collective and argument positions for `call`, or `None` if `call` starts no collective, send or
    /// receive.
    pub(crate) const fn find(call: NcclCall) -> Option<Self> {
        // The functions take one or two buffers, and then `count, datatype`. Some functions then take an operator, a
        // peer (or root rank), or both. The last arguments are `comm, stream`. The numbers are the positions of
        // `count`, of the peer and of `comm`.
        let (collective, first, peer, communicator) = match call {
            NcclCall::AllReduce => (Collective::AllReduce, 2, None, 5),
            NcclCall::Broadcast => (Collective::Broadcast, 2, Some(4), 5),
            NcclCall::BroadcastInPlace => (Collective::Broadcast, 1, Some(3), 4),
            NcclCall::Reduce => (Collective::Reduce, 2, Some(5), 6),
            NcclCall::AllGather => (Collective::AllGather, 2, None, 4),
            NcclCall::ReduceScatter => (Collective::ReduceScatter, 2, None, 5),
            NcclCall::AllToAll => (Collective::AllToAll, 2, None, 4),
            NcclCall::Send => (Collective::Send, 1, Some(3), 4),
            NcclCall::Receive => (Collective::Receive, 1, Some(3), 4),
            _ => return None,
        };
        Some(Self {
            collective,
            count: first,
            data_type: first + 1,
            peer,
            communicator,
            stream: communicator + 1,
        })
    }
}

/// Notes in the recorder's ring (the recent calls, from which a hang is diagnosed) that an NCCL call begins. Returns
/// true if the library must also see the call return.
pub(crate) fn enters(arguments: &CollectiveArguments, frame: &CallFrame) -> bool {
    if !ring::is_wanted() {
        frame.thunk.make_transparent();
        return false;
    }
    let handle = frame.word(arguments.communicator);
    let operation = Operation {
        collective: arguments.collective,
        count: frame.word(arguments.count) as u64,
        // The data type and the peer are 32-bit values. The upper halves of their registers are undefined, so only
        // the lower halves are used.
        data_type: frame.word(arguments.data_type) as u8,
        peer: arguments.peer.map(|word| frame.word(word) as u32),
    };
    let open = ring::call_begins(
        operation,
        handle,
        frame.word(arguments.stream),
        session::is_any_capturing() && session::is_capturing(),
        || recorder::member(communicators::holds(handle)),
    );
    frame.other_stream.set(open.map_or(0, OpenCall::number));
    open.is_some()
}

/// Notes in the recorder's ring (the recent calls) that an NCCL call has returned.
pub(crate) fn returns(frame: &CallFrame) {
    if let Some(open) = OpenCall::from_number(frame.other_stream.get()) {
        ring::call_ends(open);
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_calls::NCCL_CALLS;
    use tllmprof_platform::function;

    use super::*;
    use crate::made::{alone, record_of};
    use crate::thunk::{Role, Thunk};

    #[test]
    fn functions_that_start_collectives_have_their_arguments_in_order() {
        for (call, names) in NCCL_CALLS {
            let is_collective = !names[0].starts_with("ncclComm");
            let found = CollectiveArguments::find(*call);
            assert_eq!(found.is_some(), is_collective, "{}", names[0]);
            let Some(found) = found else { continue };
            let peer = found.peer.unwrap_or(found.data_type);
            assert!(
                found.count < found.data_type
                    && found.data_type <= peer
                    && peer < found.communicator
                    && found.communicator < found.stream,
                "{}",
                names[0]
            );
        }
    }

    type AllReduce = extern "C" fn(usize, usize, usize, i32, i32, usize, usize) -> usize;

    extern "C" fn all_reduce(
        _: usize,
        _: usize,
        count: usize,
        _: i32,
        _: i32,
        _: usize,
        stream: usize,
    ) -> usize {
        count + stream
    }

    #[test]
    fn a_collective_is_in_the_ring_with_its_arguments() {
        let path = record_of("ring");
        let variables = [("TLLMPROF_RING", path.as_str())];
        alone(&variables, || {
            let settings = session::activity::settings().unwrap();
            recorder::start(settings);
            recorder::ring::begin(settings);
            let role = Role::Nccl(NcclCall::AllReduce);
            let thunk = Thunk::for_function(all_reduce as AllReduce as *mut _, role).unwrap();
            // SAFETY: the stub jumps to `all_reduce`, which has this type.
            let stub: Option<AllReduce> = unsafe { function::at(thunk.stub()) };
            for handle in [0x10, 0x20, 0x10] {
                assert_eq!(stub.unwrap()(1, 2, 300, 9, 0, handle, 0x70), 300 + 0x70);
            }
            let path = std::env::var_os("TLLMPROF_RING").unwrap();
            let read = || tllmprof_record::Ring::read(&std::fs::read(&path).unwrap()).unwrap();
            let ring = read();
            let found: Vec<_> = ring
                .collectives
                .iter()
                .map(|one| {
                    (
                        one.sequence,
                        one.operation,
                        one.stream,
                        one.end_ns.is_some(),
                    )
                })
                .collect();
            let operation = Operation {
                collective: Collective::AllReduce,
                count: 300,
                data_type: 9,
                peer: None,
            };
            let expected = [0, 0, 1].map(|sequence| (sequence, operation, 0x70, true));
            assert_eq!(found, expected);
            assert_eq!(ring.communicators.len(), 2);
        });
    }
}
