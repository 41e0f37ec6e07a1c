//! Calls with which the program creates NCCL communicators. The ranks are read from the arguments, before the call.
//! These calls do not return to the library, because they have more words on the stack than are copied. A split does
//! return, as only NCCL knows which rank it assigns.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;

use tllmprof_calls::NcclCall;
use tllmprof_platform::thread::uncounted;
use tllmprof_platform::{elf, peek};
use tllmprof_recorder::{self as recorder, CommunicatorId, Member};
use tllmprof_session as session;

use super::frame::Frame;

/// Size of an `ncclUniqueId` in bytes.
const UNIQUE_ID_SIZE: usize = 128;
/// Type of `ncclCommUserRank` and `ncclCommCount`.
type AskNccl = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
/// Largest number of identifiers of one communicator that are read.
const MAX_IDENTIFIERS: usize = 16;

/// Records that the program creates communicators, or destroys one. Returns true if the call must return to the library. A communicator
/// that NCCL creates by itself is part of one of the program's.
pub fn made(call: NcclCall, frame: &Frame) -> bool {
    if call == NcclCall::AsyncError && !recorder::are_parts_open() {
        return false; // programs ask at intervals
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
        // `ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank`: on x86-64 the identifier lies on the stack. On
        // AArch64 a register holds its address.
        NcclCall::InitRank if cfg!(target_arch = "x86_64") => one(2, &|| on_stack(frame)),
        NcclCall::InitRank => one(3, &|| identified_at(frame.args[2], 1)),
        // `ncclComm_t *comm, int nranks, int rank, int nId, ncclUniqueId *commIds`.
        NcclCall::InitRankScalable => one(2, &|| {
            identified_at(frame.args[4], number(3).map_or(0, |count| count as usize))
        }),
        // `ncclComm_t *comms, int ndev, const int *devices`: all ranks are in this process.
        NcclCall::InitAll => {
            let alone = number(1).filter(|count| *count == 1);
            session::communicator(alone.map(|_| (0, 1)));
            if alone.is_none() {
                recorder::communicator(Member::UNKNOWN, 0);
            }
        }
        NcclCall::Split => return recorder::is_wanted() || recorder::ring::is_wanted(),
        NcclCall::AsyncError => return true,
        _ => {} // collectives, which do not come here
    }
    false
}

/// Records a split: `ncclComm_t comm, int color, int key, ncclComm_t *newcomm`. The ranks follow from the colors and
/// keys that the other processes passed. A color below 0 gives this process no part. While NCCL is still creating the
/// part, in a group of calls or because the call does not block and has not `succeeded` yet, the rank is not known.
pub fn split(frame: &Frame, succeeded: bool) {
    let [parent, color, _, slot, ..] = frame.args;
    let Some(nccl) = elf::containing(frame.thunk.real().addr()) else {
        return;
    };
    // NCCL prints a warning if it is asked about a communicator that it is still creating.
    let place = |communicator: usize| succeeded.then(|| place(&nccl, communicator)).flatten();
    let part = recorder::split(holds(parent), place(parent), color as u32);
    if color as i32 >= 0 {
        recorder::part(part, slot, handle(slot).and_then(place));
    }
}

/// Handles a query of a communicator's state: `ncclComm_t comm, ncclResult_t *asyncError`. If the communicator is the
/// part of a split and is ready, NCCL now knows its rank.
pub fn is_asked_about(frame: &Frame) {
    let [communicator, error, ..] = frame.args;
    let nccl = elf::containing(frame.thunk.real().addr());
    if let Some(nccl) = nccl.filter(|_| read(error) == Some(0_u32.to_ne_bytes())) {
        recorder::part_is_ready(holds(communicator), || place(&nccl, communicator));
    }
}

/// Returns a function that is true of addresses that hold the communicator's handle.
pub fn holds(communicator: usize) -> impl Fn(usize) -> bool {
    move |slot| handle(slot) == Some(communicator)
}

/// Returns the handle that the program keeps at an address; `None` if the address cannot be read.
fn handle(slot: usize) -> Option<usize> {
    read(slot).map(usize::from_ne_bytes)
}

/// Returns the bytes at an address of the program's.
fn read<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    peek::copy(address, &mut bytes)?;
    Some(bytes)
}

/// Returns this process's rank in a communicator, and its size, as NCCL reports them. While NCCL creates a communicator
/// its handle is 0.
fn place(nccl: &elf::Module, communicator: usize) -> Option<(u64, u64)> {
    handle(communicator)?; // the address must be readable, whatever it holds
    let asked = |name: &CStr| {
        let function = nccl.defines(name, None)?;
        // SAFETY: NCCL defines the functions that are called here with this type: a communicator, and where to store
        // the number.
        let function = unsafe { transmute::<*mut c_void, AskNccl>(function) };
        let mut number = -1;
        // SAFETY: the program has just split this communicator, received it from a split that succeeded, or queried its
        // state: NCCL may read it.
        let result = unsafe { function(communicator, &raw mut number) };
        (result == 0).then(|| u64::try_from(number).ok()).flatten()
    };
    asked(c"ncclCommUserRank").zip(asked(c"ncclCommCount"))
}

/// Returns the communicator with the identifier that is the first argument on the stack.
fn on_stack(frame: &Frame) -> CommunicatorId {
    let mut bytes = [0; UNIQUE_ID_SIZE];
    for (word, into) in bytes.chunks_exact_mut(size_of::<usize>()).enumerate() {
        into.copy_from_slice(&frame.word(frame.args.len() + word).to_ne_bytes());
    }
    CommunicatorId::from_bytes(&bytes)
}

/// Returns the communicator with `count` identifiers at `address`, or `UNKNOWN` if they cannot be read.
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
