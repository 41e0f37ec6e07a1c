//! The role of an intercepted function: the library that it belongs to, and the call that it makes.

use core::ffi::c_void;

use tllmprof_calls::{CALLS, Call, CallPurpose, CuptiCall, Library, NcclCall, Stream, Wait};
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads;

use super::wanted::CallUses;
use super::{Does, Simple};
use crate::handlers::handlers;

/// The role of an intercepted function: the library that it belongs to, and the call that it makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// A function of the driver.
    Driver(Call),
    /// A function of another library that replaces the driver's function of the same name, and calls it.
    Front(Call),
    /// A function of the CUDA runtime, which calls the driver.
    Runtime(Call),
    /// Either version of `cuGetProcAddress`. The function that it returns is replaced by a stub (code of this library
    /// that leads to the function itself).
    ProcAddress,
    /// A function with which a profiler attaches or releases CUPTI.
    Cupti(CuptiCall),
    /// A function of NCCL.
    Nccl(NcclCall),
}

impl Role {
    /// Returns the role of the same function if it lies in a library other than the driver: a driver function becomes
    /// a [`Role::Front`].
    pub(super) const fn of_another_library(self) -> Self {
        match self {
            Self::Driver(call) => Self::Front(call),
            role => role,
        }
    }

    pub(super) const fn encode(self) -> u32 {
        match self {
            Self::Driver(call) => call as u32,
            Self::Runtime(call) => 0x100 | call as u32,
            Self::ProcAddress => 0x200,
            Self::Cupti(call) => 0x300 | call as u32,
            Self::Front(call) => 0x400 | call as u32,
            Self::Nccl(call) => 0x500 | call as u32,
        }
    }

    /// Returns the role from the result of [`Role::encode`].
    pub(super) fn decode(code: u32) -> Self {
        let [number, library, ..] = code.to_le_bytes();
        let call = CALLS[usize::from(number)].call;
        match library {
            0 => Self::Driver(call),
            1 => Self::Runtime(call),
            3 => CuptiCall::from_number(number).map_or(Self::ProcAddress, Self::Cupti),
            4 => Self::Front(call),
            5 => NcclCall::from_number(number).map_or(Self::ProcAddress, Self::Nccl),
            _ => Self::ProcAddress,
        }
    }

    /// Returns the handler that the thunk (the description) of a function with this role must have at present. The
    /// handler of a driver function depends on the purposes for which the function's calls are needed.
    pub(super) fn handler(self) -> *mut c_void {
        match self {
            Self::Driver(call) => CallUses::now().handler(call) as *mut c_void,
            Self::Runtime(_)
            | Self::Front(_)
            | Self::ProcAddress
            | Self::Cupti(_)
            | Self::Nccl(_) => handlers().slow as *mut c_void,
        }
    }

    /// Returns the properties of the driver call that has this role, if the call is [`Simple`]: it enqueues work or
    /// waits, and it has no stream or gets the stream as an argument. Returns `None` for all other functions.
    pub(super) fn simple(self) -> Option<Simple> {
        let Self::Driver(call) = self else {
            return None;
        };
        let does = match call.kind() {
            kind if kind.enqueues() => Does::Enqueues,
            CallPurpose::Wait(Wait::Stream) => Does::WaitsForStream,
            CallPurpose::Wait(Wait::Event) => Does::WaitsForEvent,
            CallPurpose::Wait(Wait::Context | Wait::CopyToHost) => Does::WaitsForAll,
            _ => return None,
        };
        let stream = match call.stream(Library::Driver) {
            Stream::None => None,
            Stream::Word(word) => Some(word),
            Stream::Configured(_) => return None,
        };
        Some(Simple {
            does,
            stream,
            bytes: call.info().small_by,
        })
    }

    /// Returns the offset in bytes, from the thread's first cell, of the cell (counter) that the fast path increments.
    /// Returns 0 for functions that never take the fast path.
    pub(super) fn cell(self) -> usize {
        match self {
            Self::Driver(call) | Self::Runtime(call) | Self::Front(call) => {
                threads::cell_offset(Counted::Call(call))
            }
            Self::ProcAddress | Self::Cupti(_) | Self::Nccl(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use tllmprof_calls::{CUPTI_CALLS, NCCL_CALLS};

    use super::*;
    use crate::thunk::Thunk;

    /// Returns all roles that a hooked function can have.
    fn roles() -> impl Iterator<Item = Role> {
        let of_call = |call| [Role::Driver(call), Role::Runtime(call), Role::Front(call)];
        let of_calls = CALLS.iter().flat_map(move |row| of_call(row.call));
        let of_cupti = CUPTI_CALLS.iter().map(|(call, _)| Role::Cupti(*call));
        let of_nccl = NCCL_CALLS.iter().map(|(call, _)| Role::Nccl(*call));
        let others = [Role::ProcAddress]
            .into_iter()
            .chain(of_cupti)
            .chain(of_nccl);
        of_calls.chain(others)
    }

    #[test]
    fn a_thunk_says_what_it_was_made_as() {
        let mut codes = Vec::new();
        for role in roles() {
            let real = without_provenance_mut(0x1000);
            let thunk = Thunk::made(real, role);
            assert_eq!((thunk.real(), thunk.role()), (real, role));
            assert!(!codes.contains(&role.encode()), "{role:?}");
            codes.push(role.encode());
        }
    }
}
