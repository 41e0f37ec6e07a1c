//! Calls with which the program creates NCCL communicators. The library reads the rank from the arguments before the
//! call runs. For most of these calls, the library cannot see the return: to see a call return, it must copy the call's
//! stack arguments, and these calls have more stack words than it copies. A split is the exception: only NCCL knows
//! which rank it assigns, so the library reads the rank after the call.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;

use tllmprof_calls::NcclCall;
use tllmprof_platform::thread::uncounted;
use tllmprof_platform::{elf, peek};
use tllmprof_recorder::{self as recorder, CommunicatorId, Member};
use tllmprof_session as session;

use super::frame::CallFrame;

/// Size of an `ncclUniqueId` in bytes.
const UNIQUE_ID_SIZE: usize = 128;
/// Type of `ncclCommUserRank` and `ncclCommCount`, which store the rank or the size of a communicator at the second
/// argument.
type AskNccl = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
/// Largest number of `ncclUniqueId`s that are read for one communicator. `ncclCommInitRankScalable` takes several.
const MAX_IDENTIFIERS: usize = 16;

/// Records the rank and the communicator of a call that creates, splits, queries or destroys a communicator. Runs
/// before the call. Returns true if the library must see the call return. Ignores calls that NCCL makes itself, because
/// the program's call that led to them was intercepted, too.
pub(crate) fn made(call: NcclCall, frame: &CallFrame) -> bool {
    if call == NcclCall::AsyncError && !recorder::are_parts_open() {
        return false; // no split is unfinished, and programs make this query often
    }
    let nccl = elf::containing(frame.thunk.real().addr());
    if nccl.is_some_and(|nccl| nccl.contains(frame.return_address)) {
        return false;
    }
    if call == NcclCall::Destroy {
        recorder::ring::communicator_ends(frame.args[0]);
        return false;
    }
    if let Some(settings) = session::activity::settings() {
        uncounted(&mut || recorder::ring::begin(settings));
    }
    let number = |word: usize| u64::try_from(frame.args[word] as i32).ok();
    let one = |rank: usize, id: &dyn Fn() -> CommunicatorId| {
        let place = number(rank).zip(number(1));
        session::communicator(place);
        let member = place.map_or(Member::UNKNOWN, |place| Member::from_place(id(), place));
        recorder::communicator(member, frame.args[0]);
    };
    match call {
        // The arguments are `ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank`. On x86-64 the identifier
        // lies on the stack. On AArch64 a register holds its address.
        NcclCall::InitRank if cfg!(target_arch = "x86_64") => one(2, &|| on_stack(frame)),
        NcclCall::InitRank => one(3, &|| identified_at(frame.args[2], 1)),
        // The arguments are `ncclComm_t *comm, int nranks, int rank, int nId, ncclUniqueId *commIds`.
        NcclCall::InitRankScalable => one(2, &|| {
            identified_at(frame.args[4], number(3).map_or(0, |count| count as usize))
        }),
        // The arguments are `ncclComm_t *comms, int ndev, const int *devices`. All ranks are in this process, so the
        // process has a single rank only if `ndev` is 1.
        NcclCall::InitAll => {
            let alone = number(1).filter(|count| *count == 1);
            session::communicator(alone.map(|_| (0, 1)));
            if alone.is_none() {
                recorder::communicator(Member::UNKNOWN, 0);
            }
        }
        NcclCall::Split => return recorder::is_wanted() || recorder::ring::is_wanted(),
        NcclCall::AsyncError => return true,
        _ => {} // collectives, which `collectives.rs` handles
    }
    false
}

/// Records a split of a communicator: `ncclCommSplit(comm, color, key, newcomm, config)`. NCCL computes the new ranks
/// from the colors and keys of all processes. If the color is below 0, this process joins no new communicator. The
/// new rank of this process is unknown while NCCL is still creating the new communicator. That is the case inside a
/// group of calls, or if the call does not block and has not `succeeded` yet.
pub(crate) fn split(frame: &CallFrame, succeeded: bool) {
    let [parent, color, _, slot, ..] = frame.args;
    let Some(nccl) = elf::containing(frame.thunk.real().addr()) else {
        return;
    };
    // Ask only if the call succeeded: NCCL prints a warning if it is asked about a communicator that it is still
    // creating.
    let place = |communicator: usize| succeeded.then(|| place(&nccl, communicator)).flatten();
    let part = recorder::split(holds(parent), place(parent), color as u32);
    if color as i32 >= 0 {
        recorder::part(part, slot, handle(slot).and_then(place));
    }
}

/// Called after the query `ncclCommGetAsyncError(comm, asyncError)` has returned. If NCCL has stored 0 (success) at
/// `asyncError` and the communicator came from a split, NCCL now knows the new rank of this process, so the rank is
/// recorded.
pub(crate) fn is_asked_about(frame: &CallFrame) {
    let [communicator, error, ..] = frame.args;
    let nccl = elf::containing(frame.thunk.real().addr());
    if let Some(nccl) = nccl.filter(|_| read(error) == Some(0_u32.to_ne_bytes())) {
        recorder::part_is_ready(holds(communicator), || place(&nccl, communicator));
    }
}

/// Returns a predicate on an address: true if the word at that address is this communicator's handle.
pub(crate) fn holds(communicator: usize) -> impl Fn(usize) -> bool {
    move |slot| handle(slot) == Some(communicator)
}

/// Returns the communicator handle that the program stores at an address, or `None` if the address cannot be read.
fn handle(slot: usize) -> Option<usize> {
    read(slot).map(usize::from_ne_bytes)
}

/// Returns the `N` bytes at an address in the program's memory, or `None` if the address cannot be read.
fn read<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    peek::copy(address, &mut bytes)?;
    Some(bytes)
}

/// Returns this process's rank in a communicator and the communicator's size, as NCCL reports them. Returns `None`
/// while NCCL is still creating the communicator.
fn place(nccl: &elf::ElfModule, communicator: usize) -> Option<(u64, u64)> {
    handle(communicator)?; // do not ask NCCL if the address is unreadable
    let asked = |name: &CStr| {
        let function = nccl.defines(name, None)?;
        // SAFETY: NCCL defines `ncclCommUserRank` and `ncclCommCount` with this type: the arguments are a communicator
        // and the address at which to store the number.
        let function = unsafe { transmute::<*mut c_void, AskNccl>(function) };
        let mut number = -1;
        // SAFETY: the program has just split this communicator, received it from a split that succeeded, or queried its
        // state, so NCCL may read it.
        let result = unsafe { function(communicator, &raw mut number) };
        (result == 0).then(|| u64::try_from(number).ok()).flatten()
    };
    asked(c"ncclCommUserRank").zip(asked(c"ncclCommCount"))
}

/// Returns the communicator whose `ncclUniqueId` was passed by value, as the first argument on the stack.
fn on_stack(frame: &CallFrame) -> CommunicatorId {
    let mut bytes = [0; UNIQUE_ID_SIZE];
    for (word, into) in bytes.chunks_exact_mut(size_of::<usize>()).enumerate() {
        into.copy_from_slice(&frame.word(frame.args.len() + word).to_ne_bytes());
    }
    CommunicatorId::from_bytes(&bytes)
}

/// Returns the communicator whose `count` unique identifiers lie at `address`, or `UNKNOWN` if they cannot be read.
fn identified_at(address: usize, count: usize) -> CommunicatorId {
    let mut bytes = [0; UNIQUE_ID_SIZE * MAX_IDENTIFIERS];
    let bytes = &mut bytes[..UNIQUE_ID_SIZE * count.min(MAX_IDENTIFIERS)];
    match peek::copy(address, bytes) {
        Some(()) if !bytes.is_empty() => CommunicatorId::from_bytes(bytes),
        _ => CommunicatorId::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_that_cannot_be_read_are_not_known() {
        let unique = [7_u8; 3 * UNIQUE_ID_SIZE];
        let place = unique.as_ptr().expose_provenance();
        assert_eq!(
            identified_at(place, 1),
            CommunicatorId::from_bytes(&unique[..UNIQUE_ID_SIZE])
        );
        assert_eq!(identified_at(place, 3), CommunicatorId::from_bytes(&unique));
        for (address, count) in [(0, 1), (16, 1), (place, 0)] {
            assert_eq!(
                identified_at(address, count),
                CommunicatorId::UNKNOWN,
                "{address:x}"
            );
        }
    }
}
