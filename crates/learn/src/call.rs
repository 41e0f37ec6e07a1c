//! The calls that are reported to the learner, such as launches, copies and waits.

use tllmprof_calls::Wait;

/// One call of the process, with those handles that distinguish call sites (see `lib.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A kernel launch, made by any of the launch functions. The value is the kernel's handle.
    Launch(u64),
    /// A graph launch. The graph's handle is left out because programs use a different graph for each batch
    /// size, even at the same place in the code.
    GraphLaunch,
    /// A copy to the host that may return before it is done.
    CopyToHost,
    /// A copy to the device.
    CopyToDevice,
    /// The return of a wait. [`Learner::event`](crate::Learner::event) adds the wait to the thread's trail (list of
    /// recent calls).
    Returned(Wait),
    /// The beginning of a stream capture on this thread. The thread's calls during the capture are ignored, because
    /// they run nothing on the GPU.
    CaptureBegin,
    /// The end of a stream capture on this thread.
    CaptureEnd,
}

impl Call {
    /// Converts a word of a recorded call stream to a call. `kernel` returns the kernel's handle for a
    /// launch. Returns `None` for a word that the learner does not use. `tests/streams/README.md` describes
    /// the format.
    ///
    /// # Errors
    /// Returns the errors of `kernel`.
    pub fn recorded<E>(
        word: &str,
        kernel: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        Ok(Some(match word {
            "launch" | "launch_ex" | "launch_cooperative" => Self::Launch(kernel()?),
            "graph_launch" => Self::GraphLaunch,
            "memcpy_dtoh_async" => Self::CopyToHost,
            "memcpy_htod_async" => Self::CopyToDevice,
            "stream_sync_end" => Self::Returned(Wait::Stream),
            "event_sync_end" => Self::Returned(Wait::Event),
            "ctx_sync_end" => Self::Returned(Wait::Context),
            "memcpy_dtoh_end" => Self::Returned(Wait::CopyToHost),
            "begin_capture" => Self::CaptureBegin,
            "end_capture" => Self::CaptureEnd,
            _ => return Ok(None),
        }))
    }
}

/// Tokens that stand for calls in a thread's trail (list of recent calls). A kernel launch is stored as the
/// kernel's handle, a pointer, which is never as small as these numbers.
pub(crate) mod token {
    pub(crate) const GRAPH: u64 = 1;
    pub(crate) const COPY_TO_HOST: u64 = 2;
    pub(crate) const COPY_TO_DEVICE: u64 = 3;
    pub(crate) const WAIT: u64 = 4;

    /// Returns true if the token stands for a kernel or graph launch.
    pub(crate) const fn launches(token: u64) -> bool {
        token == GRAPH || token >= 16
    }
}

/// The call types that can end an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SiteCall {
    // The numbers begin with 1, so that `None` is stored as 0 and an empty history is all zeros.
    CopyToHost = 1,
    Stream,
    Event,
    Context,
    BlockingCopy,
    /// A wait right after a copy to the device. Such a wait is usually for the copy, and seldom for the work
    /// of an iteration.
    Upload,
}

impl SiteCall {
    pub(crate) const fn for_wait(wait: Wait) -> Self {
        match wait {
            Wait::Stream => Self::Stream,
            Wait::Event => Self::Event,
            Wait::Context => Self::Context,
            Wait::CopyToHost => Self::BlockingCopy,
        }
    }

    /// Returns the name of the call for messages.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::CopyToHost => "device-to-host copy",
            Self::Stream => "stream wait",
            Self::Event => "event wait",
            Self::Context => "device wait",
            Self::BlockingCopy => "blocking device-to-host copy",
            Self::Upload => "wait for a host-to-device copy",
        }
    }
}
