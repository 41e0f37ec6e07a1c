//! The one table of the CUDA functions that tllmprof intercepts.
//!
//! A row is one *call*: the driver's and the runtime's names of the same thing, legacy and
//! per-thread-stream (`_ptsz`, `_ptds`) forms alike. The preloaded library exports every name of
//! every row and recognises them in `dlsym` and `cuGetProcAddress`; the step rules accept them;
//! the command lists them. Adding a call is adding a row to [`cuda_calls!`].

#![forbid(unsafe_code)]

use std::fmt;

/// What a call means to the step counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Launches a CUDA graph: opens an iteration when entered.
    GraphLaunch,
    /// Launches a kernel: opens an iteration when entered.
    KernelLaunch,
    /// Enqueues a copy and may return before it is done: opens an iteration when entered.
    AsyncCopy,
    /// Waits on the device: closes an iteration when it returns.
    Wait,
    /// Begins a stream capture; its first argument is the stream.
    CaptureBegin,
    /// Ends a stream capture; its first argument is the stream.
    CaptureEnd,
    /// Takes or gives back memory: no step, and may make the device idle.
    Memory,
    /// The program's own profiler control, passed through.
    Profiler,
    /// Ends the life of what its first argument names, a stream, a context or a device's, with all
    /// that belongs to it.
    Destroys,
}

impl Kind {
    /// Whether a call of this kind can be a step rule.
    #[must_use]
    pub const fn counts(self) -> bool {
        matches!(
            self,
            Self::GraphLaunch | Self::KernelLaunch | Self::AsyncCopy | Self::Wait
        )
    }

    /// Whether the call enqueues work, and may return before it is done.
    #[must_use]
    pub const fn enqueues(self) -> bool {
        matches!(
            self,
            Self::GraphLaunch | Self::KernelLaunch | Self::AsyncCopy
        )
    }

    /// Whether the call enqueues work for the compute units (what `auto` calls a launch).
    #[must_use]
    pub const fn launches(self) -> bool {
        matches!(self, Self::GraphLaunch | Self::KernelLaunch)
    }
}

/// Expands `$then!` with every row:
/// `Variant Kind [driver names] [runtime names] copy_kind?`.
///
/// The first name of each list is the one that messages use. `device_to_host` marks rows whose
/// runtime function has a `cudaMemcpyKind` as its fourth argument and belongs to the row only when
/// that is `cudaMemcpyDeviceToHost`. Copies to the device are the driver's alone: the runtime's
/// functions lead there, and the direction that `cudaMemcpyDefault` takes shows only there.
#[macro_export]
macro_rules! cuda_calls {
    ($then:ident) => {
        $then! {
            GraphLaunch GraphLaunch
                [cuGraphLaunch cuGraphLaunch_ptsz]
                [cudaGraphLaunch cudaGraphLaunch_ptsz] any;
            LaunchKernel KernelLaunch
                [cuLaunchKernel cuLaunchKernel_ptsz]
                [cudaLaunchKernel cudaLaunchKernel_ptsz] any;
            LaunchKernelEx KernelLaunch
                [cuLaunchKernelEx cuLaunchKernelEx_ptsz]
                [cudaLaunchKernelExC cudaLaunchKernelExC_ptsz] any;
            LaunchCooperativeKernel KernelLaunch
                [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz]
                [cudaLaunchCooperativeKernel cudaLaunchCooperativeKernel_ptsz] any;
            MemcpyDtoHAsync AsyncCopy
                [cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoHAsync]
                [cudaMemcpyAsync cudaMemcpyAsync_ptsz] device_to_host;
            MemcpyDtoH Wait
                [cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyDtoH]
                [cudaMemcpy cudaMemcpy_ptds] device_to_host;
            MemcpyHtoDAsync AsyncCopy
                [cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoDAsync] [] any;
            MemcpyHtoD AsyncCopy
                [cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyHtoD] [] any;
            StreamSynchronize Wait
                [cuStreamSynchronize cuStreamSynchronize_ptsz]
                [cudaStreamSynchronize cudaStreamSynchronize_ptsz] any;
            EventSynchronize Wait
                [cuEventSynchronize]
                [cudaEventSynchronize] any;
            CtxSynchronize Wait
                [cuCtxSynchronize cuCtxSynchronize_v2]
                [cudaDeviceSynchronize] any;
            StreamBeginCapture CaptureBegin
                [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz
                 cuStreamBeginCapture cuStreamBeginCapture_ptsz]
                [cudaStreamBeginCapture cudaStreamBeginCapture_ptsz] any;
            StreamBeginCaptureToGraph CaptureBegin
                [cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz]
                [cudaStreamBeginCaptureToGraph cudaStreamBeginCaptureToGraph_ptsz] any;
            StreamEndCapture CaptureEnd
                [cuStreamEndCapture cuStreamEndCapture_ptsz]
                [cudaStreamEndCapture cudaStreamEndCapture_ptsz] any;
            MemAlloc Memory
                [cuMemAlloc_v2 cuMemAlloc]
                [cudaMalloc] any;
            MemFree Memory
                [cuMemFree_v2 cuMemFree]
                [cudaFree] any;
            MemHostAlloc Memory
                [cuMemHostAlloc cuMemAllocHost_v2 cuMemAllocHost]
                [cudaHostAlloc cudaMallocHost] any;
            MemFreeHost Memory
                [cuMemFreeHost]
                [cudaFreeHost] any;
            ProfilerStart Profiler
                [cuProfilerStart]
                [cudaProfilerStart] any;
            ProfilerStop Profiler
                [cuProfilerStop]
                [cudaProfilerStop] any;
            StreamDestroy Destroys
                [cuStreamDestroy_v2 cuStreamDestroy]
                [cudaStreamDestroy] any;
            CtxDestroy Destroys
                [cuCtxDestroy_v2 cuCtxDestroy] [] any;
            PrimaryCtxRelease Destroys
                [cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease] [] any;
            PrimaryCtxReset Destroys
                [cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset]
                [cudaDeviceReset] any;
        }
    };
}

/// One row of the table.
#[derive(Debug)]
pub struct CallInfo {
    /// The row.
    pub call: Call,
    /// What it means to the step counter.
    pub kind: Kind,
    /// Symbols of libcuda, the one that messages use first.
    pub driver: &'static [&'static str],
    /// Symbols of libcudart, the one that messages use first.
    pub runtime: &'static [&'static str],
    /// The runtime function belongs to the row only with `cudaMemcpyDeviceToHost`.
    pub device_to_host_only: bool,
}

impl CallInfo {
    /// Every symbol of the row.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.driver.iter().chain(self.runtime).copied()
    }
}

macro_rules! device_to_host {
    (any) => {
        false
    };
    (device_to_host) => {
        true
    };
}

macro_rules! table {
    ($($call:ident $kind:ident [$($driver:ident)*] [$($runtime:ident)*] $when:ident;)*) => {
        /// A CUDA call by any of its names.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)] // the variants are named after the functions
        pub enum Call {
            $($call,)*
        }

        /// The table, in the order of [`Call`]'s variants.
        pub const CALLS: &[CallInfo] = &[
            $(CallInfo {
                call: Call::$call,
                kind: Kind::$kind,
                driver: &[$(stringify!($driver)),*],
                runtime: &[$(stringify!($runtime)),*],
                device_to_host_only: device_to_host!($when),
            },)*
        ];
    };
}
cuda_calls!(table);

impl Call {
    /// This call's row.
    #[must_use]
    pub const fn info(self) -> &'static CallInfo {
        &CALLS[self as usize]
    }

    /// What it means to the step counter.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.info().kind
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
        CALLS
            .iter()
            .find(|row| {
                row.names()
                    .any(|known| known == name || base(known) == name)
            })
            .map(|row| row.call)
    }
}

/// A set of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls(u32);

impl Calls {
    /// No call.
    pub const NONE: Self = Self(0);
    /// Every call.
    pub const ALL: Self = Self(u32::MAX);

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
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set that [`Calls::bits`] gave.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

const _: () = assert!(CALLS.len() <= 32, "a set of calls has 32 bits");

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A symbol without the suffixes that `cuda.h` adds behind its users' backs.
fn base(symbol: &str) -> &str {
    let plain = symbol
        .strip_suffix("_ptsz")
        .or_else(|| symbol.strip_suffix("_ptds"))
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
            for name in row.names() {
                assert_eq!(Call::by_name(name), Some(row.call), "{name}");
                assert_eq!(Call::by_name(base(name)), Some(row.call), "{name}");
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
        }
    }
}
