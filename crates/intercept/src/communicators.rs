//! Calls by which the program makes communicators of NCCL: the ranks that it gives them are read on the way in. These calls do not come
//! back: they have more words on the stack than are copied. A split does, as NCCL alone knows which rank it gives.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;

use tllmprof_calls::NcclCall;
use tllmprof_platform::{elf, ids, peek};
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
    let nccl = elf::containing(frame.thunk.real().addr());
    if nccl.is_some_and(|nccl| nccl.contains(frame.return_address)) {
        return false;
    }
    let number = |word: usize| u64::try_from(frame.args[word] as i32).ok();
    let one = |rank: usize, id: &dyn Fn() -> CommunicatorId| {
        let place = number(rank).zip(number(1));
        session::communicator(place);
        let member = place.map_or(Member::UNKNOWN, |place| member(place, id));
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
    }
    false
}

/// The program has split a communicator: `ncclComm_t comm, int color, int key, ncclComm_t *newcomm`. The ranks follow from what the
/// others gave. Without one here for a color below 0. Not known while NCCL still makes it, in a group of calls or where it has not
/// `succeeded` yet, as it does not block.
pub fn split(frame: &Frame, succeeded: bool) {
    let [parent, color, _, slot, ..] = frame.args;
    let Some(nccl) = elf::containing(frame.thunk.real().addr()) else {
        return;
    };
    // NCCL warns whoever asks it about a communicator that it is still at work on.
    let place = |communicator: usize| succeeded.then(|| place(&nccl, communicator)).flatten();
    let holds = |slot: usize| handle(slot) == Some(parent);
    let id = recorder::split(holds, place(parent), color as u32);
    if color as i32 >= 0 {
        let member = match handle(slot).and_then(place) {
            Some((rank, size)) => member((rank.into(), size.into()), &|| id),
            None => Member::UNKNOWN,
        };
        recorder::communicator(member, slot);
    }
}

/// The handle that the program keeps at an address; `None` where nothing can be read there.
fn handle(slot: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    let length = bytes.len();
    let copied = peek::read(
        ids::process(),
        &[peek::Span {
            address: slot,
            length,
        }],
        &mut bytes,
    );
    (copied == Ok(length)).then(|| usize::from_ne_bytes(bytes))
}

/// The rank that the process has in a communicator, and its size, as NCCL says it.
fn place(nccl: &elf::Module, communicator: usize) -> Option<(u32, u32)> {
    if communicator == 0 {
        return None;
    }
    let asked = |name: &CStr| {
        let function = nccl.defines(name, None)?;
        // SAFETY: NCCL defines the functions that are asked for here so: a communicator, and where to put the number.
        let function = unsafe { transmute::<*mut c_void, AskNccl>(function) };
        let mut number = -1;
        // SAFETY: a communicator that the program has just split, or was just given by a split that succeeded: NCCL may look at it.
        let result = unsafe { function(communicator, &raw mut number) };
        (result == 0).then(|| u32::try_from(number).ok()).flatten()
    };
    asked(c"ncclCommUserRank").zip(asked(c"ncclCommCount"))
}

/// A rank of a communicator.
fn member((rank, size): (u64, u64), id: &dyn Fn() -> CommunicatorId) -> Member {
    match (u32::try_from(rank), u32::try_from(size), id()) {
        (Ok(rank), Ok(size), id) if rank < size && id != CommunicatorId::UNKNOWN => {
            Member { id, rank, size }
        }
        _ => Member::UNKNOWN,
    }
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
    let length = UNIQUE * count.min(MOST);
    let copied = peek::read(
        ids::process(),
        &[peek::Span { address, length }],
        &mut bytes,
    );
    match copied {
        Ok(copied) if copied == length && length > 0 => CommunicatorId::of(&bytes[..length]),
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

    #[test]
    fn a_rank_that_is_none_is_of_no_communicator() {
        let id = || CommunicatorId::of(b"some");
        assert!(member((3, 4), &id).is_known());
        for place in [(4, 4), (0, 0), (0, 1 << 32)] {
            assert_eq!(member(place, &id), Member::UNKNOWN, "{place:?}");
        }
        assert_eq!(member((0, 1), &|| CommunicatorId::UNKNOWN), Member::UNKNOWN);
    }
}
