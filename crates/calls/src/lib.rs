//! The CUDA calls that tllmprof knows, and all that it knows of them.
//!
//! A row of the [table](CALLS) is one *call*: the driver's and the runtime's names of the same thing,
//! legacy and per-thread-stream (`_ptsz`, `_ptds`) forms alike. The preloaded library exports every
//! name of every row and recognises them in `dlsym` and `cuGetProcAddress`; the step rules accept
//! them; what recorded calls mean is looked up here. Whoever wants to know something of a call asks its
//! row: a new call is a new row in `table.rs`, and touches no other file.

#![forbid(unsafe_code)]

mod kind;
mod table;

use std::ffi::CStr;
use std::fmt;

pub use kind::{Destroyed, DeviceWork, Direction, GraphCall, Kind, Stream, Wait};
pub use table::{CALLS, CUPTI_CALLS, Call, CallInfo, CuptiCall, LOOK_UPS, NCCL_CALLS, NcclCall};

/// The library that a function belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// libcuda.
    Driver,
    /// libcudart, which calls libcuda.
    Runtime,
}

impl Call {
    /// This call's row.
    #[must_use]
    #[inline]
    pub const fn info(self) -> &'static CallInfo {
        &CALLS[self as usize]
    }

    /// What it does.
    #[must_use]
    #[inline]
    pub const fn kind(self) -> Kind {
        self.info().kind
    }

    /// Where a function of it has the stream.
    #[must_use]
    #[inline]
    pub const fn stream(self, library: Library) -> Stream {
        self.info().stream[library as usize]
    }

    /// The row's index in [`CALLS`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The driver's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.info().driver[0]
    }

    /// The call that `name` is one of the names of.
    ///
    /// The suffixes that the headers hide (`_ptsz`, `_ptds`, `_v2` …) may be left out, as
    /// `cuGetProcAddress` callers do.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::and_library(name).map(|(call, _)| call)
    }

    /// The call that `name` is one of the names of, and whose name that is.
    #[must_use]
    #[inline(never)] // for look-ups alone: once in the library
    pub fn and_library(name: &str) -> Option<(Self, Library)> {
        let is_it = |known: &&str| *known == name || base(known) == name;
        let row = CALLS
            .iter()
            .find(|row| row.names().any(|known| is_it(&known)))?;
        let library = match row.driver.iter().any(is_it) {
            true => Library::Driver,
            false => Library::Runtime,
        };
        Some((row.call, library))
    }
}

/// How the functions of a library beside CUDA are looked up in its table.
macro_rules! looked_up {
    ($($of:ident in $table:ident;)+) => {
        $(
            impl $of {
                /// The one that the function of this name is.
                #[must_use]
                pub fn by_name(name: &str) -> Option<Self> {
                    let mut calls = $table.iter();
                    calls.find_map(|(call, names)| names.contains(&name).then_some(*call))
                }

                /// The one that `as` makes this number of.
                #[must_use]
                pub fn of(number: u8) -> Option<Self> {
                    let mut calls = $table.iter().map(|(call, _)| *call);
                    calls.find(|call| *call as u8 == number)
                }
            }
        )+
    };
}
looked_up! {
    CuptiCall in CUPTI_CALLS;
    NcclCall in NCCL_CALLS;
}

/// What the function of this name does, of those that are known: intercepted or not.
#[must_use]
pub fn kind_of(name: &str) -> Option<Kind> {
    let other = || {
        let name = base(name);
        let mut others = table::OTHERS.iter();
        others.find_map(|(kind, names)| names.contains(&name).then_some(*kind))
    };
    Call::by_name(name).map(Call::kind).or_else(other)
}

/// Whether a function of the driver, by its name, may give the GPU work: one that is not known does.
#[must_use]
pub fn may_give_work(name: &str) -> bool {
    match Call::by_name(name) {
        Some(call) => call.kind().gives_work(),
        None => !table::WITHOUT_WORK.iter().any(|part| name.contains(part)),
    }
}

/// Whether `name` may be a function of the driver that is called in a context: not one of another
/// library (`cublas…`), and none of [`table::WITHOUT_CONTEXT`].
#[must_use]
pub fn is_called_in_context(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.starts_with(b"cu")
        && name.get(2).is_some_and(u8::is_ascii_uppercase)
        && !table::WITHOUT_CONTEXT
            .iter()
            .any(|without| name.starts_with(without.as_bytes()))
}

/// A set of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls(u64);

impl Calls {
    /// No call.
    pub const NONE: Self = Self(0);
    /// Every call.
    pub const ALL: Self = Self(u64::MAX);

    /// The calls that `belongs` says yes to.
    pub fn which(belongs: impl Fn(Call) -> bool) -> Self {
        let bits = CALLS
            .iter()
            .filter(|row| belongs(row.call))
            .map(|row| 1 << row.call.index());
        Self(bits.sum())
    }

    /// Whether `call` is one of them.
    #[must_use]
    pub const fn contains(self, call: Call) -> bool {
        self.0 & 1 << call.index() != 0
    }

    /// The set as a number, for an atomic.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The set that [`Calls::bits`] gave.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

const _: () = assert!(CALLS.len() <= 64, "a set of calls has 64 bits");

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether stream 0 is the calling thread's own to the function of this name.
#[must_use]
pub fn is_per_thread(symbol: &CStr) -> bool {
    let symbol = symbol.to_bytes();
    PER_THREAD
        .iter()
        .any(|suffix| symbol.ends_with(suffix.as_bytes()))
}

/// What the names of functions end in to which stream 0 is the calling thread's own.
const PER_THREAD: [&str; 2] = ["_ptsz", "_ptds"];

/// A symbol without the suffixes that `cuda.h` adds behind its users' backs.
#[must_use]
pub fn base(symbol: &str) -> &str {
    let plain = PER_THREAD
        .iter()
        .find_map(|suffix| symbol.strip_suffix(suffix))
        .unwrap_or(symbol);
    plain.strip_suffix("_v2").unwrap_or(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_its_row_and_to_no_other() {
        for row in CALLS {
            assert_eq!(CALLS[row.call.index()].call, row.call);
            for (names, library) in [
                (row.driver, Library::Driver),
                (row.runtime, Library::Runtime),
            ] {
                for name in names {
                    let found = Some((row.call, library));
                    assert_eq!(Call::and_library(name), found, "{name}");
                    assert_eq!(Call::and_library(base(name)), found, "{name}");
                    assert_eq!(kind_of(name), Some(row.kind), "{name}");
                }
            }
        }
    }

    #[test]
    fn strangers_are_no_calls() {
        for name in [
            "",
            "cu",
            "cuGraphLaunch_",
            "cuGraphLaunchX",
            "cudaMallocAsync",
            "_ptsz",
            "_v2",
        ] {
            assert_eq!(Call::by_name(name), None, "{name}");
            assert_eq!(kind_of(name), None, "{name}");
        }
    }

    #[test]
    fn functions_of_cuptis_are_no_calls_of_cuda() {
        for (call, names) in CUPTI_CALLS {
            assert_eq!(CuptiCall::of(*call as u8), Some(*call));
            for name in *names {
                assert_eq!(CuptiCall::by_name(name), Some(*call), "{name}");
                assert_eq!(Call::by_name(name), None, "{name}");
            }
        }
        assert_eq!(CuptiCall::of(CUPTI_CALLS.len() as u8), None);
        assert_eq!(CuptiCall::by_name("cuptiActivityEnable"), None);
    }

    #[test]
    fn functions_of_nccl_are_no_calls_of_cuda() {
        for (call, names) in NCCL_CALLS {
            assert_eq!(NcclCall::of(*call as u8), Some(*call));
            for name in *names {
                assert_eq!(NcclCall::by_name(name), Some(*call), "{name}");
                assert_eq!(Call::by_name(name), None, "{name}");
            }
        }
        assert_eq!(NcclCall::of(NCCL_CALLS.len() as u8), None);
        assert_eq!(NcclCall::by_name("ncclCommDestroy"), None);
    }

    #[test]
    fn a_row_agrees_with_itself() {
        for row in CALLS {
            let CallInfo { kind, stream, .. } = row;
            let call = row.call;
            assert!(
                !row.driver.is_empty(),
                "{call:?}: messages use the driver's name"
            );
            if row.runtime.is_empty() {
                assert!(!row.device_to_host_only, "{call}");
                assert!(
                    stream[Library::Runtime as usize] == Stream::None || kind.captures(),
                    "{call}"
                );
            }
            if kind.captures() {
                assert_eq!(*stream, [Stream::Word(0); 2], "{call}");
            }
            if let Kind::KernelLaunch { handle } = kind {
                assert!(
                    *handle < 2,
                    "{call}: the library has handlers for the first two arguments"
                );
            }
            assert!(row.small_by.is_none() || kind.enqueues(), "{call}");
        }
    }

    #[test]
    fn what_is_not_intercepted_is_known_by_any_of_its_names() {
        let copy = Some(Kind::AsyncCopy(Direction::Other));
        assert_eq!(kind_of("cuMemcpy2DAsync_v2_ptsz"), copy);
        assert_eq!(kind_of("cudaMallocManaged"), Some(Kind::Memory));
        assert_eq!(kind_of("cudaMemcpyToSymbol"), None);
        let mut seen = std::collections::HashSet::new();
        for name in table::OTHERS.iter().flat_map(|(_, names)| *names) {
            assert!(seen.insert(name), "{name} twice");
            assert_eq!(base(name), *name);
            assert_eq!(Call::by_name(name), None, "{name} has a row");
        }
    }

    #[test]
    fn a_function_that_is_not_known_may_give_work() {
        for name in [
            "cuMemcpyDtoH_v2",
            "cuLaunchKernel",
            "cuMemsetD8Async",
            "cuNew",
        ] {
            assert!(may_give_work(name), "{name}");
        }
        for name in [
            "cuMemAlloc_v2",
            "cuStreamSynchronize",
            "cuEventRecord",
            "cuStreamQuery",
        ] {
            assert!(!may_give_work(name), "{name}");
        }
        assert!(is_called_in_context(c"cuMemAlloc_v2"));
        for name in [
            c"cu",
            c"cublasCreate",
            c"cudaMalloc",
            c"cuGetProcAddress_v2",
        ] {
            assert!(!is_called_in_context(name), "{name:?}");
        }
    }
}
