//! The CUDA calls that tllmprof knows, with all facts about them.
//!
//! A row of the [table](CALLS) is one *call*. It has the driver's and the runtime's names for the same function,
//! including the legacy and per-thread-stream (`_ptsz`, `_ptds`) forms. The preloaded library exports every name of
//! every row, and recognizes the names in `dlsym` and `cuGetProcAddress`. A step rule (the value of `TLLMPROF_STEP`)
//! may name the calls that launch, copy or wait. Readers of a record look up the purpose of its calls here. All facts
//! about a call are in its row, so a new call needs only a new row in `table.rs`.

#![forbid(unsafe_code)]

mod kind;
mod table;

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

pub use kind::{CallPurpose, Destroyed, DeviceWork, Direction, GraphCall, Stream, Wait};
pub use table::{CALLS, CUPTI_CALLS, Call, CallInfo, CuptiCall, LOOK_UPS, NCCL_CALLS, NcclCall};

/// The library that a CUDA function belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// The driver, libcuda.
    Driver,
    /// The runtime, libcudart, which calls the driver.
    Runtime,
}

impl Call {
    /// Returns this call's row in [`CALLS`], with all facts about the call.
    #[must_use]
    #[inline]
    pub const fn info(self) -> &'static CallInfo {
        &CALLS[self as usize]
    }

    #[must_use]
    #[inline]
    pub const fn kind(self) -> CallPurpose {
        self.info().kind
    }

    /// Returns the position of the stream argument in the function that `library` defines for this call.
    #[must_use]
    #[inline]
    pub const fn stream(self, library: Library) -> Stream {
        self.info().stream[library as usize]
    }

    /// Returns the index of the call's row in [`CALLS`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the driver's name for the call. Messages use this name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.info().driver[0]
    }

    /// Returns the call with this function name, or `None` if the table has no such call.
    ///
    /// The suffixes that the headers hide (`_ptsz`, `_ptds`, `_v2` …) may be missing in `name`, because programs pass
    /// names without these suffixes to `cuGetProcAddress`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::and_library(name).map(|(call, _)| call)
    }

    /// Returns the call with this name, and the library that the name belongs to. Returns `None` if the table has no
    /// such call.
    #[must_use]
    #[inline(never)] // called only for look-ups, which are rare, so it is not inlined
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

/// Defines look-up functions for the calls of CUPTI and of NCCL, from their tables.
macro_rules! looked_up {
    ($($of:ident in $table:ident;)+) => {
        $(
            impl $of {
                /// Returns the call with this function name, or `None` if the table has no such call.
                #[must_use]
                pub fn by_name(name: &str) -> Option<Self> {
                    let mut calls = $table.iter();
                    calls.find_map(|(call, names)| names.contains(&name).then_some(*call))
                }

                /// Returns the call with this number, which is the variant's discriminant (`as u8`). Returns `None`
                /// if the number is too large.
                #[must_use]
                pub fn from_number(number: u8) -> Option<Self> {
                    $table.get(usize::from(number)).map(|(call, _)| *call)
                }
            }
        )+
    };
}
looked_up! {
    CuptiCall in CUPTI_CALLS;
    NcclCall in NCCL_CALLS;
}

/// Returns the purpose of the function with this name, or `None` if the function is unknown. Functions that the library
/// does not intercept may be known, too. A HIP function has the purpose of the corresponding CUDA function.
#[must_use]
pub fn kind_of(name: &str) -> Option<CallPurpose> {
    let name = &*cuda_name(name);
    let other = || {
        let name = base(name);
        let mut others = table::OTHERS.iter();
        others.find_map(|(kind, names)| names.contains(&name).then_some(*kind))
    };
    Call::by_name(name).map(Call::kind).or_else(other)
}

/// Returns the name of the CUDA function that corresponds to the function `name`, if `name` is a HIP function, a
/// function that CUDA has removed, or a copy to or from a symbol. Returns other names unchanged.
#[must_use]
pub fn cuda_name(name: &str) -> Cow<'_, str> {
    let known = table::SAME.iter().find(|(other, _)| *other == name);
    if let Some((_, same)) = known {
        return Cow::Borrowed(same);
    }
    let Some(rest) = name.strip_prefix("hip") else {
        return Cow::Borrowed(name);
    };
    // HIP's names follow the names of the CUDA runtime: `hipX` corresponds to `cudaX`. If the runtime has no `cudaX`,
    // but the driver has `cuX`, then `hipX` corresponds to `cuX`.
    let driver = format!("cu{rest}");
    match Call::by_name(&driver).filter(|_| Call::by_name(&format!("cuda{rest}")).is_none()) {
        Some(_) => Cow::Owned(driver),
        None => Cow::Owned(format!("cuda{rest}")),
    }
}

/// Returns true if the driver function with this name may submit work to the GPU. A function that has no row in the
/// table is assumed to submit work, unless its name contains an entry of [`table::WITHOUT_WORK`].
#[must_use]
pub fn may_give_work(name: &str) -> bool {
    match Call::by_name(name) {
        Some(call) => call.kind().gives_work(),
        None => !table::WITHOUT_WORK.iter().any(|part| name.contains(part)),
    }
}

/// Returns true if a function with this name may be a driver function that needs a current CUDA context. Returns
/// false for functions of other libraries (`cublas…`), and for names that begin with an entry of
/// [`table::WITHOUT_CONTEXT`].
#[must_use]
pub fn is_called_in_context(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.starts_with(b"cu")
        && name.get(2).is_some_and(u8::is_ascii_uppercase)
        && !table::WITHOUT_CONTEXT
            .iter()
            .any(|without| name.starts_with(without.as_bytes()))
}

/// A set of calls, as a bit mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallSet(u64);

impl CallSet {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// The set of all calls.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the set of the calls for which `belongs` is true.
    pub fn which(belongs: impl Fn(Call) -> bool) -> Self {
        let bits = CALLS
            .iter()
            .filter(|row| belongs(row.call))
            .map(|row| 1 << row.call.index());
        Self(bits.sum())
    }

    #[must_use]
    pub const fn contains(self, call: Call) -> bool {
        self.0 & 1 << call.index() != 0
    }

    /// Returns the set as a number, to be stored in an atomic.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the set from a result of [`CallSet::bits`].
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

/// Returns true if stream 0 means the calling thread's default stream in the function with this name.
#[must_use]
pub fn is_per_thread(symbol: &CStr) -> bool {
    let symbol = symbol.to_bytes();
    PER_THREAD
        .iter()
        .any(|suffix| symbol.ends_with(suffix.as_bytes()))
}

/// Suffixes of the names of functions in which stream 0 means the calling thread's default stream.
const PER_THREAD: [&str; 2] = ["_ptsz", "_ptds"];

/// Returns a symbol without the suffixes that `cuda.h` adds to function names with macros.
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
            assert_eq!(CuptiCall::from_number(*call as u8), Some(*call));
            for name in *names {
                assert_eq!(CuptiCall::by_name(name), Some(*call), "{name}");
                assert_eq!(Call::by_name(name), None, "{name}");
            }
        }
        assert_eq!(CuptiCall::from_number(CUPTI_CALLS.len() as u8), None);
        assert_eq!(CuptiCall::by_name("cuptiActivityEnable"), None);
    }

    #[test]
    fn functions_of_nccl_are_no_calls_of_cuda() {
        for (call, names) in NCCL_CALLS {
            assert_eq!(NcclCall::from_number(*call as u8), Some(*call));
            for name in *names {
                assert_eq!(NcclCall::by_name(name), Some(*call), "{name}");
                assert_eq!(Call::by_name(name), None, "{name}");
            }
        }
        assert_eq!(NcclCall::from_number(NCCL_CALLS.len() as u8), None);
        assert_eq!(NcclCall::by_name("ncclGroupStart"), None);
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
            if let CallPurpose::KernelLaunch { handle } = kind {
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
        let copy = Some(CallPurpose::AsyncCopy(Direction::Other));
        assert_eq!(kind_of("cuMemcpy2DAsync_v2_ptsz"), copy);
        assert_eq!(kind_of("cudaMallocManaged"), Some(CallPurpose::Memory));
        assert_eq!(kind_of("cudaMemcpy3D"), None);
        let mut seen = std::collections::HashSet::new();
        for name in table::OTHERS.iter().flat_map(|(_, names)| *names) {
            assert!(seen.insert(name), "{name} twice");
            assert_eq!(base(name), *name);
            assert_eq!(Call::by_name(name), None, "{name} has a row");
        }
    }

    #[test]
    fn functions_of_hip_and_of_old_cuda_do_what_those_of_cuda_do() {
        let launch = kind_of("cudaLaunchKernel");
        for name in ["hipLaunchKernel", "hipExtModuleLaunchKernel", "cudaLaunch"] {
            assert_eq!(kind_of(name), launch, "{name}");
        }
        let wait = |name| kind_of(name).and_then(CallPurpose::waits_for);
        assert_eq!(wait("hipStreamSynchronize"), Some(Wait::Stream));
        assert_eq!(wait("hipEventSynchronize"), Some(Wait::Event));
        assert_eq!(wait("hipMemcpyWithStream"), Some(Wait::CopyToHost));
        assert_eq!(kind_of("hipMemcpyDtoH"), kind_of("cuMemcpyDtoH"));
        assert_eq!(kind_of("hipGetDevice"), None);
        assert_eq!(kind_of("hip"), None);
        for (name, same) in table::SAME {
            assert!(kind_of(same).is_some(), "{name}");
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
