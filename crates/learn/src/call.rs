//! The calls that are reported to the learner.

use tllmprof_calls::Wait;

/// One call of the process, with the handles that distinguish sites.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A kernel launch of any form, by its kernel's handle.
    Launch(u64),
    /// A graph launch. The graph's handle is left out, as it depends on the batch size and not on the place
    /// in the program.
    GraphLaunch,
    /// A copy to the host that may return before it is done.
    CopyToHost,
    /// A copy to the device.
    CopyToDevice,
    /// The return of a wait. The call is noted when it is entered, and reported when it returns.
    Returned(Wait),
    /// The begin of a stream capture on this thread. Until it ends, the thread's calls are not work.
    CaptureBegin,
    /// The end of a stream capture on this thread.
    CaptureEnd,
}

impl Call {
    /// Returns the call that a recorded stream has under this word. `kernel` returns the handle of a launch's
    /// kernel. Returns `None` if the learner does not use the call. `tests/streams/README.md` describes the
    /// format.
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

/// The tokens that a thread's trail keeps for calls that are not kernel launches. Kernel handles are pointers
/// and are never as small.
pub(crate) mod token {
    pub const GRAPH: u64 = 1;
    pub const COPY_TO_HOST: u64 = 2;
    pub const COPY_TO_DEVICE: u64 = 3;
    pub const WAIT: u64 = 4;

    /// Returns true if the token is that of a kernel or graph launch.
    pub const fn launches(token: u64) -> bool {
        token == GRAPH || token >= 16
    }
}

/// The calls that can be sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SiteCall {
    // Not 0, so that an empty history is all zeros.
    CopyToHost = 1,
    Stream,
    Event,
    Context,
    BlockingCopy,
    /// A wait right after a copy to the device. It waits for that copy, and seldom for an iteration.
    Upload,
}

impl SiteCall {
    pub const fn for_wait(wait: Wait) -> Self {
        match wait {
            Wait::Stream => Self::Stream,
            Wait::Event => Self::Event,
            Wait::Context => Self::Context,
            Wait::CopyToHost => Self::BlockingCopy,
        }
    }

    /// Returns the words that messages use.
    pub const fn words(self) -> &'static str {
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
