//! The reasons why no kernels are recorded.

use core::fmt;

/// A reason why no kernels are recorded with CUPTI.
#[derive(Clone, Debug)]
pub(crate) enum KernelsRefusal {
    NoRecord,
    TorchProfiler,
    /// The variable `CUDA_INJECTION64_PATH` is set, so the driver loads another tool.
    Injected,
    /// The GPU is a MIG instance, and the user did not request kernels explicitly.
    Mig,
    NoDriver,
    NotFound {
        newest: u32,
    },
    NotLoaded(String),
    TooOld {
        path: String,
        version: u32,
    },
    Lacks {
        path: String,
        function: &'static str,
    },
    Memory {
        free: usize,
    },
    Taken,
    Failed {
        function: &'static str,
        status: i32,
    },
    Slow,
    /// There is no memory for the thread-local variables of CUPTI or the driver.
    ThreadLocals,
}

impl KernelsRefusal {
    /// Returns true if the reason may no longer apply when the next window (range of profiled iterations) opens.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Memory { .. } | Self::Taken | Self::Failed { .. } | Self::ThreadLocals
        )
    }

    /// Returns a number that identifies the reason, so that each reason is reported only once.
    pub(crate) const fn number(&self) -> u32 {
        match self {
            Self::NoRecord => 0,
            Self::TorchProfiler => 1,
            Self::Injected => 2,
            Self::NoDriver => 3,
            Self::NotFound { .. } => 4,
            Self::NotLoaded(_) => 5,
            Self::TooOld { .. } => 6,
            Self::Lacks { .. } => 7,
            Self::Memory { .. } => 8,
            Self::Taken => 9,
            Self::Failed { .. } => 10,
            Self::Slow => 11,
            Self::Mig => 12,
            Self::ThreadLocals => 13,
        }
    }
}

impl fmt::Display for KernelsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord => f.write_str("there is no record to take them down in (TLLMPROF_TRACE)"),
            Self::TorchProfiler => f.write_str(
                "the PyTorch profiler is to run in the same windows (TLLM_TORCH_PROFILE_TRACE), and \
                 CUPTI serves one",
            ),
            Self::Injected => f.write_str(
                "another tool is to trace CUDA, as nsys does (CUDA_INJECTION64_PATH), and CUPTI \
                 serves one",
            ),
            Self::Mig => f.write_str("the GPU is an instance of MIG (--kernels takes them there, too)"),
            Self::NoDriver => f.write_str("the CUDA driver was not found in this process"),
            Self::NotFound { newest } => write!(
                f,
                "CUPTI was not found: no libcupti.so.{} to .{newest} in LD_LIBRARY_PATH, beside the \
                 CUDA runtime, in /usr/local/cuda*, or where the loader looks",
                tllmprof_cupti::OLDEST
            ),
            Self::NotLoaded(why) => write!(f, "CUPTI could not be loaded: {why}"),
            Self::TooOld { path, version } => write!(
                f,
                "{path} is CUPTI of before CUDA 12 (API version {version})"
            ),
            Self::Lacks { path, function } => write!(f, "{path} has no {function}"),
            Self::Memory { free } => write!(
                f,
                "the GPU has {} MiB of memory free, and CUPTI takes some (wanted: {} MiB)",
                free >> 20,
                super::MIN_FREE_MEMORY >> 20
            ),
            Self::Taken => f.write_str(
                "another profiler has CUPTI (nsys, or the PyTorch profiler, which keeps it once it \
                 has run)",
            ),
            Self::Failed { function, status } => write!(f, "{function} failed with error {status}"),
            Self::ThreadLocals => f.write_str(
                "the process has no memory for CUPTI's thread-local variables (RLIMIT_DATA, RLIMIT_AS, RLIMIT_MEMLOCK)",
            ),
            Self::Slow => f.write_str("CUPTI took too long to load, or no thread could be started to load it"),
        }
    }
}
