//! Calls by which the program makes communicators of NCCL: the ranks that it gives them are read on the way in. These calls do not come
//! back: they have more words on the stack than are copied. A split does, as NCCL alone knows which rank it gives.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;

use tllmprof_calls::NcclCall;
use tllmprof_platform::{elf, peek};
use tllmprof_recorder::{self as recorder, CommunicatorId, Member};
use tllmprof_session as session;

use super::frame::Frame;

/// The bytes of an `ncclUniqueId`.
const UNIQUE: usize = 128;
/// `ncclCommUserRank` and `ncclCommCount`.
type AskNccl = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
/// How many of them one communicator is made by at most that are looked at.
const MOST: usize = 16;

/// The program makes communicators; whether the call is to come back. One that NCCL makes by itself is part of the program's.
pub fn made(call: NcclCall, frame: &Frame) -> bool {
    if call == NcclCall::AsyncError && !recorder::are_parts_open() {
        return false; // programs ask at intervals
    }
    let nccl = elf::containing(frame.thunk.real().addr());
    if nccl.is_some_and(|nccl| nccl.contains(frame.return_address)) {
        return false;
    }
    let number = |word: usize| u64::try_from(frame.args[word] as i32).ok();
    let one = |rank: usize, id: &dyn Fn() -> CommunicatorId| {
        let place = number(rank).zip(number(1));
        session::communicator(place);
        let member = place.map_or(Member::UNKNOWN, |place| Member::of(id(), place));
        recorder::communicator(member, frame.args[0]);
    };
    match call {
        // `ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank`: on x86-64 the identifier lies on the stack, and on
        // AArch64 a register has its address.
        NcclCall::InitRank if cfg!(target_arch = "x86_64") => one(2, &|| on_stack(frame)),
        NcclCall::InitRank => one(3, &|| at(frame.args[2], 1)),
        // `ncclComm_t *comm, int nranks, int rank, int nId, ncclUniqueId *commIds`.
        NcclCall::InitRankScalable => one(2, &|| {
            at(frame.args[4], number(3).map_or(0, |count| count as usize))
        }),
        // `ncclComm_t *comms, int ndev, const int *devices`: all ranks are in this process.
        NcclCall::InitAll => {
            let alone = number(1).filter(|count| *count == 1);
            session::communicator(alone.map(|_| (0, 1)));
            if alone.is_none() {
                recorder::communicator(Member::UNKNOWN, 0);
            }
        }
        NcclCall::Split => return recorder::is_wanted(),
        NcclCall::AsyncError => return true,
    }
    false
}

/// The program has split a communicator: `ncclComm_t comm, int color, int key, ncclComm_t *newcomm`. The ranks follow from what the
/// others gave. Without a part here for a color below 0. While NCCL still makes it, in a group of calls or where it has not `succeeded`
/// yet, as it does not block, that is open.
pub fn split(frame: &Frame, succeeded: bool) {
    let [parent, color, _, slot, ..] = frame.args;
    let Some(nccl) = elf::containing(frame.thunk.real().addr()) else {
        return;
    };
    // NCCL warns whoever asks it about a communicator that it is still at work on.
    let place = |communicator: usize| succeeded.then(|| place(&nccl, communicator)).flatten();
    let part = recorder::split(holds(parent), place(parent), color as u32);
    if color as i32 >= 0 {
        recorder::part(part, slot, handle(slot).and_then(place));
    }
}

/// The program has asked how far NCCL is with a communicator: `ncclComm_t comm, ncclResult_t *asyncError`. Of a part of another that is
/// ready, NCCL knows the rank by now.
pub fn is_asked_about(frame: &Frame) {
    let [communicator, error, ..] = frame.args;
    let nccl = elf::containing(frame.thunk.real().addr());
    if let Some(nccl) = nccl.filter(|_| read(error) == Some(0_u32.to_ne_bytes())) {
        recorder::part_is_ready(holds(communicator), || place(&nccl, communicator));
    }
}

/// Whether a communicator's handle is kept at an address.
fn holds(communicator: usize) -> impl Fn(usize) -> bool {
    move |slot| handle(slot) == Some(communicator)
}

/// The handle that the program keeps at an address; `None` where nothing can be read there.
fn handle(slot: usize) -> Option<usize> {
    read(slot).map(usize::from_ne_bytes)
}

/// The bytes at an address of the program's.
fn read<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    peek::copy(address, &mut bytes)?;
    Some(bytes)
}

/// The rank that the process has in a communicator, and its size, as NCCL says it. NCCL has 0 as the handle while it makes one.
fn place(nccl: &elf::Module, communicator: usize) -> Option<(u64, u64)> {
    handle(communicator)?; // whatever lies there: something does
    let asked = |name: &CStr| {
        let function = nccl.defines(name, None)?;
        // SAFETY: NCCL defines the functions that are asked for here so: a communicator, and where to put the number.
        let function = unsafe { transmute::<*mut c_void, AskNccl>(function) };
        let mut number = -1;
        // SAFETY: a communicator that the program has just split, was just given by a split that succeeded, or has just asked about: NCCL
        // may look at it.
        let result = unsafe { function(communicator, &raw mut number) };
        (result == 0).then(|| u64::try_from(number).ok()).flatten()
    };
    asked(c"ncclCommUserRank").zip(asked(c"ncclCommCount"))
}

/// By an identifier that is the first argument on the stack.
fn on_stack(frame: &Frame) -> CommunicatorId {
    let mut bytes = [0; UNIQUE];
    for (word, into) in bytes.chunks_exact_mut(size_of::<usize>()).enumerate() {
        into.copy_from_slice(&frame.word(frame.args.len() + word).to_ne_bytes());
    }
    CommunicatorId::of(&bytes)
}

/// By so many identifiers that lie there; not known where they cannot be read.
fn at(address: usize, count: usize) -> CommunicatorId {
    let mut bytes = [0; UNIQUE * MOST];
    let bytes = &mut bytes[..UNIQUE * count.min(MOST)];
    match peek::copy(address, bytes) {
        Some(()) if !bytes.is_empty() => CommunicatorId::of(bytes),
        _ => CommunicatorId::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_that_cannot_be_read_are_not_known() {
        let unique = [7_u8; 3 * UNIQUE];
        let place = unique.as_ptr().expose_provenance();
        assert_eq!(at(place, 1), CommunicatorId::of(&unique[..UNIQUE]));
        assert_eq!(at(place, 3), CommunicatorId::of(&unique));
        for (address, count) in [(0, 1), (16, 1), (place, 0)] {
            assert_eq!(at(address, count), CommunicatorId::UNKNOWN, "{address:x}");
        }
    }
}
